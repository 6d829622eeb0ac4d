#!/usr/bin/env python3
"""Trains a small GPT on Moby-Dick with DDP and compressed gradients.

    torchrun --nproc_per_node=4 examples/ddp_gpt.py --method dqsg

Debian's torchrun 1.13 needs `--redirects 2 --tee 2` with Python 3.11. The network is the `gpt` of
`thinreduce train`: it predicts characters, and its loss is in nats per character.
"""

from __future__ import annotations

import argparse

import common
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, HEADS, WIDTH, CONTEXT = 4, 4, 128, 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).view(len(x), CONTEXT, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        seen = (scores + self.mask).softmax(-1) @ v
        return self.joined(seen.transpose(1, 2).reshape(x.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(alphabet, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, alphabet, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                last = "joined" in name or "fc2" in name  # of a branch
                nn.init.normal_(parameter, std=0.02 / (2 * LAYERS) ** (0.5 if last else 0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        # Every sample looks its places up itself, so that `variance` sees a gradient of each.
        places = torch.arange(CONTEXT).expand_as(text)
        return self.head(self.norm(self.layers(self.tokens(text) + self.places(places))))


def loss_of(model: nn.Module, text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss over windows that begin at `starts`."""
    rows = torch.stack([text[at : at + CONTEXT + 1] for at in starts.tolist()])
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", default="dqsg", help="a method with options, or `default` for plain DDP"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=12, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--test-windows", type=int, default=400)
    parser.add_argument("--link", default="", help='emulate a slow network: "100mbit,5ms"')
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text, alphabet = common.moby_dick()
    training, test = text[: -(len(text) // 10)], text[-(len(text) // 10) :]

    torch.manual_seed(1)
    model = DistributedDataParallel(Gpt(alphabet))
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": 0.01},
        {"params": [one for one in model.parameters() if one.dim() < 2], "weight_decay": 0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    state = common.compress(model, optimizer, args.method, args.link)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=max(args.steps, 2), pct_start=0.25, cycle_momentum=False
    )
    windows = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(args.steps):
        starts = torch.randint(len(training) - CONTEXT, (args.batch,), generator=windows)
        optimizer.zero_grad()
        loss_of(model, training, starts).backward()
        optimizer.step()
        schedule.step()

    with torch.no_grad():
        starts = torch.arange(args.test_windows) * CONTEXT
        parts = [loss_of(model.module, test, part) * len(part) for part in starts.split(16)]
    loss = torch.stack(parts).sum().item() / args.test_windows
    result = {"method": args.method, "steps": args.steps, "loss": round(loss, 4)}
    common.finish(model, state, result)


if __name__ == "__main__":
    main()
