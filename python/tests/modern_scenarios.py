"""Ways in which people train today. test_ddp.py starts it on two ranks, with torch 2 only."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from ddp_support import Net, digest, main, make, same_on_all_ranks, scenario, train
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import thinreduce

SPECS = ("fp32", "dqsg", "topk")


class Language(nn.Module):
    """A language model whose last layer is its embedding, as in GPT-2."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)  # the same weights in every model
        self.embedding = nn.Embedding(128, 48)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(48, 128, bias=False)
        self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def language_loss(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    tokens = torch.randint(0, 128, (4, 17), generator=generator)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train_language(model, optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        language_loss(model, step).backward()
        optimizer.step()


def same_gradients(model: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for own, one in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(own.grad, one.grad, rtol=tolerance, atol=tolerance / 10)


@scenario
def tied_embeddings_are_reduced_as_one_tensor():
    plain, optimizer, _ = make(None, net=Language())
    train_language(plain, optimizer, 3)
    for spec in SPECS:
        model, optimizer, state = make(spec, net=Language())
        train_language(model, optimizer, 3)
        same_on_all_ranks(model)
        assert model.module.head.weight is model.module.embedding.weight
        assert state.stats()["elements"] == sum(p.numel() for p in model.parameters())
        if spec == "fp32":
            same_gradients(model, plain)


@scenario
def a_scaler_skips_an_overflow_on_all_ranks_and_nothing_is_lost():
    for spec in SPECS:
        model, _, state = make(spec, net=Language())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step in range(6):
            optimizer.zero_grad()
            before = state.state_dict()["engine"] if step else b""
            weights = digest(model)
            loss = language_loss(model, step)
            if step == 3 and dist.get_rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert (digest(model) == weights) == (step == 3), step
            if step == 3:
                assert state.state_dict()["engine"] == before
        assert state.skipped == 1
        assert scaler.get_scale() == 512.0
        same_on_all_ranks(model)


@scenario
def clipped_gradients_are_the_reduced_ones():
    def train_clipped(model) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for step in range(3):
            optimizer.zero_grad()
            language_loss(model, step).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            assert norm > 0.1, norm
            optimizer.step()

    plain, _, _ = make(None, net=Language())
    train_clipped(plain)
    for spec in SPECS:
        model, _, _ = make(spec, net=Language())
        train_clipped(model)
        same_on_all_ranks(model)
        if spec == "fp32":
            for own, one in zip(model.parameters(), plain.parameters()):
                torch.testing.assert_close(own, one, rtol=1e-5, atol=1e-6)


@scenario
def bf16_parameters_get_the_mean_of_all_ranks():
    plain, optimizer, _ = make(None, net=Language().bfloat16())
    train_language(plain, optimizer, 1)
    for spec in SPECS:
        model, optimizer, _ = make(spec, net=Language().bfloat16())
        train_language(model, optimizer, 1)  # the warm-up step is uncompressed
        assert model.module.head.weight.grad.dtype == torch.bfloat16
        same_gradients(model, plain, tolerance=2e-2)
        train_language(model, optimizer, 3)
        same_on_all_ranks(model)


@scenario
def compiled_modules_train():
    plain, optimizer, _ = make(None)
    train(plain, optimizer, 2)
    # aot_eager traces as the default backend does, and needs no C++ compiler.
    for wrap in ("inside", "outside"):
        torch.manual_seed(7)
        net: nn.Module = Net()
        if wrap == "inside":
            net = torch.compile(net, backend="aot_eager")
        model = DDP(net, bucket_cap_mb=0.02)
        state = thinreduce.State("fp32", model=model)
        model.register_comm_hook(state, thinreduce.hook)
        step = torch.compile(model, backend="aot_eager") if wrap == "outside" else model
        train(step, torch.optim.SGD(model.parameters(), lr=0.05), 2)
        same_gradients(model, plain)
        same_on_all_ranks(model)
        assert state.stats()["total"]["steps"] == 2


@scenario
def checkpointed_activations_change_no_bit():
    for spec in SPECS:
        bits = set()
        for checkpointed in (False, True):
            model, optimizer, _ = make(spec, net=Language(checkpointed))
            train_language(model, optimizer, 3)
            bits.add(same_on_all_ranks(model))
        assert len(bits) == 1, spec


@scenario
def accumulated_gradients_are_compressed_once():
    for spec in SPECS:
        bits = set()
        # Powers of two, so that the shares of a gradient add up to all of its bits.
        for shares in ([1.0], [0.25, 0.25, 0.5]):
            model, optimizer, state = make(spec, net=Language())
            for step in range(3):
                optimizer.zero_grad()
                with model.no_sync():
                    for share in shares[:-1]:
                        (language_loss(model, step) * share).backward()
                (language_loss(model, step) * shares[-1]).backward()
                optimizer.step()
            bits.add(same_on_all_ranks(model))
            assert state.stats()["total"]["steps"] == 3
        assert len(bits) == 1, spec


if __name__ == "__main__":
    main()
