"""HSDP: two islands of two ranks. test_ddp.py starts it on four ranks, with torch 2 only."""

from __future__ import annotations

import contextlib
import math
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from ddp_support import main, raises, scenario
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import thinreduce


class Blocks(nn.Module):
    """Row counts that two shards do not divide, and parameters that only the root holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(31, 48)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 97), nn.GELU(), nn.Linear(97, 48))
            for _ in range(2)
        )
        self.head = nn.Linear(48, 31)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def meshes():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def make(spec, *, native_mesh: bool = True, by_block: bool = True, policy=None, **options):
    """Returns a model of HSDP, its optimizer and its State; without a spec, plain HSDP."""
    torch.manual_seed(7)
    model = Blocks()
    mesh = meshes()
    given = {"mesh": mesh if native_mesh else mesh["shard"]}
    if policy is not None:
        given["mp_policy"] = policy
    for block in model.blocks if by_block else ():
        fully_shard(block, **given)
    fully_shard(model, **given)
    if not native_mesh:
        options["process_group"] = mesh["replicate"].get_group()
    state = None if spec is None else thinreduce.fsdp.attach(model, spec, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), state


def loss_of(model, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    tokens = torch.randint(0, 31, (4, 9), generator=generator)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def weights(model) -> torch.Tensor:
    """Returns all parameters in one tensor, which must have the same bits on all ranks."""
    whole = torch.cat([one.full_tensor().detach().flatten() for one in model.parameters()])
    others = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
    dist.all_gather(others, whole)
    for rank, other in enumerate(others):
        assert torch.equal(other.view(torch.int32), whole.view(torch.int32)), f"rank {rank} differs"
    return whole


@contextlib.contextmanager
def counted_all_reduces():
    """Counts the all-reduces of PyTorch, of which FSDP must make none beside those of the State."""
    calls, own = [], dist.all_reduce
    dist.all_reduce = lambda *given, **named: calls.append(given) or own(*given, **named)
    try:
        yield calls
    finally:
        dist.all_reduce = own


@scenario
def fp32_gives_the_parameters_of_native_hsdp():
    plain, optimizer, _ = make(None)
    with counted_all_reduces() as calls:
        train(plain, optimizer, 20)
    assert len(calls) == 60
    expected = weights(plain)
    for native_mesh in (True, False):
        for by_block in (True, False):
            model, optimizer, state = make("fp32", native_mesh=native_mesh, by_block=by_block)
            with counted_all_reduces() as calls:
                train(model, optimizer, 20)
            assert not calls
            error = (weights(model) - expected).abs().max().item()
            assert error < 1e-6, error
            total = state.stats()["total"]
            assert total["steps"] == 20 and total["buckets"] == 20 * (3 if by_block else 1), total
            # Each rank reduces its half of the parameters; uneven ones are padded.
            half = len(expected) / 2
            assert half <= state.stats()["elements"] < half + 500, (state.stats(), half)


@scenario
def every_method_keeps_the_replicas_equal_and_sends_less():
    specs = ("dqsg", "topk", "powersgd", "gradiveq:warmup=1", "fft", "qsgd")
    for spec in specs:
        model, optimizer, state = make(spec)
        before = loss_of(model, 0).item()
        train(model, optimizer, 12)
        weights(model)
        assert loss_of(model, 0).item() < before, spec
        assert state.stats()["ratio"] > 2, (spec, state.stats()["ratio"])
        state.close()


@scenario
def rules_choose_by_parameter_name():
    model, optimizer, state = make({"blocks.*": "topk:density=0.05", "*": "fp32"})
    train(model, optimizer, 3)
    weights(model)
    specs = {
        member.name: group.spec for group in state._progress.groups.all for member in group.members
    }
    assert specs["blocks.1.3.weight"].startswith("topk") and specs["head.weight"] == "fp32", specs
    raises(
        thinreduce.BadSpec,
        "'fc.*' applies to no parameter",
        lambda: make({"fc.*": "dqsg", "*": "fp32"}),
    )


@scenario
def a_checkpoint_resumes_to_the_same_bits():
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folders)
    for native_mesh in (True, False):
        where = f"{folders[0]}/{native_mesh}"
        spec = "topk:density=0.05"

        def entries(model, optimizer, state):
            parts = get_state_dict(model, optimizer)
            own = thinreduce.checkpoint.PerRank(state)
            return {"model": parts[0], "optimizer": parts[1], "thinreduce": own}

        model, optimizer, state = make(spec, native_mesh=native_mesh)
        train(model, optimizer, 5)
        dcp.save(entries(model, optimizer, state), checkpoint_id=where)
        residuals = state.state_dict()["engine"]
        train(model, optimizer, 4, 5)
        expected = weights(model)
        for connected in (False, True):
            model, optimizer, state = make(spec, native_mesh=native_mesh)
            if connected:
                train(model, optimizer, 2)
            saved = entries(model, optimizer, state)
            dcp.load(saved, checkpoint_id=where)
            set_state_dict(
                model,
                optimizer,
                model_state_dict=saved["model"],
                optim_state_dict=saved["optimizer"],
            )
            state.connect()
            assert state.state_dict()["engine"] == residuals
            train(model, optimizer, 4, 5)
            assert torch.equal(weights(model).view(torch.int32), expected.view(torch.int32))
        model, optimizer, state = make(spec, native_mesh=native_mesh, by_block=False)
        dcp.load({"thinreduce": thinreduce.checkpoint.PerRank(state)}, checkpoint_id=where)
        # Every rank refuses; a rank that is still connecting may hear of another's refusal first.
        raises(
            (thinreduce.BadState, thinreduce.LostPeer),
            "other calls of fully_shard()",
            lambda m=model, o=optimizer: train(m, o, 1, 5),
        )
        dist.barrier()


@scenario
def gradients_that_wait_for_the_all_reduce_are_added():
    results = []
    for spec in (None, "fp32"):
        model, optimizer, state = make(spec)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(3):
                model.set_requires_all_reduce(part == 2)
                loss_of(model, 3 * step + part).backward()
            optimizer.step()
        results.append(weights(model))
        if state is not None:
            assert state.stats()["total"]["steps"] == 3
    assert (results[0] - results[1]).abs().max().item() < 1e-6
    # Without a reduce-scatter nothing is reduced either.
    model, optimizer, state = make("topk")
    model.set_requires_gradient_sync(False)
    loss_of(model, 0).backward()
    assert not state.has_state
    model.set_requires_gradient_sync(True)
    loss_of(model, 1).backward()
    assert state.stats()["total"]["steps"] == 1


@scenario
def bf16_gradients_get_the_mean():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    plain, optimizer, _ = make(None, policy=policy)
    train(plain, optimizer, 1)
    model, optimizer, _ = make("dqsg", policy=policy)
    train(model, optimizer, 1)  # the warm-up step is uncompressed
    for own, one in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(
            own.grad.full_tensor(), one.grad.full_tensor(), rtol=2e-2, atol=1e-4
        )
    train(model, optimizer, 4, 1)
    weights(model)


@scenario
def a_step_with_inf_is_nan_on_all_ranks_and_leaves_no_trace():
    model, optimizer, state = make("topk:density=0.05")
    train(model, optimizer, 3)
    before = state.state_dict()["engine"]
    optimizer.zero_grad()
    # Only one island has the Inf; its shards reach every rank of the other one.
    (loss_of(model, 3) * (math.inf if dist.get_rank() == 1 else 1.0)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    assert not torch.isfinite(norm)
    assert state.skipped == 1
    assert state.state_dict()["engine"] == before
    train(model, optimizer, 2, 4)
    assert torch.isfinite(weights(model)).all()
    model, optimizer, state = make("topk:density=0.05", nonfinite="raise")
    train(model, optimizer, 2)
    loss = loss_of(model, 3) * (math.inf if dist.get_rank() == 1 else 1.0)
    raises(thinreduce.NonFinite, "rank", loss.backward)


@scenario
def clipping_sees_the_reduced_gradients():
    results = []
    for spec in (None, "fp32"):
        model, optimizer, _ = make(spec)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        results.append(weights(model))
    assert (results[0] - results[1]).abs().max().item() < 1e-6


@scenario
def a_divide_factor_means_what_it_means_in_native_hsdp():
    gradients = []
    for spec in (None, "fp32"):
        model, _, _ = make(spec)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(3.0)
                module.set_force_sum_reduction_for_comms(True)
        loss_of(model, 0).backward()
        gradients.append([one.grad.full_tensor() for one in model.parameters()])
    for own, one in zip(*gradients):
        torch.testing.assert_close(own, one, rtol=1e-5, atol=1e-7)


@scenario
def wrong_use_is_refused_with_a_way_out():
    net = fully_shard(nn.Linear(8, 8), mesh=meshes()["shard"])
    attach = thinreduce.fsdp.attach
    raises(thinreduce.BadInput, "a mesh of two dimensions", lambda: attach(net, "dqsg"))
    raises(thinreduce.BadInput, "no parameter", lambda: attach(nn.Linear(8, 8), "dqsg"))
    net = fully_shard(nn.Linear(8, 8), mesh=meshes())
    group = meshes()["replicate"].get_group()
    raises(thinreduce.BadInput, "replicas of its own", lambda: attach(net, process_group=group))
    raises(thinreduce.BadInput, "second_moment=", lambda: attach(net, second_moment=1))

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.used(x)

    for remedy in (False, True):
        model = fully_shard(Half(), mesh=meshes())
        state = attach(model, "topk", warmup_steps=0)
        if remedy:
            model.set_reduce_scatter_unused_params(True)
            model(torch.ones(2, 64)).sum().backward()
            assert state.stats()["total"]["steps"] == 1
        else:
            raises(
                thinreduce.BadInput,
                "set_reduce_scatter_unused_params(True)",
                lambda m=model: m(torch.ones(2, 64)).sum().backward(),
            )


if __name__ == "__main__":
    main()
