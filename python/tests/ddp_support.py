"""Parts of the scenario scripts: a small model, training steps, and the loop over scenarios."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

SCENARIOS = {}

# The transport of all scenarios, if test_ddp.py wants another one than the default.
if "TRANSPORT" in os.environ:
    for one in (thinreduce.State, thinreduce.LocalSteps):
        one.__init__.__kwdefaults__["transport"] = os.environ["TRANSPORT"]


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Net(nn.Module):
    """Uses its layers in another order than it registers them, so that DDP rebuilds its buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(96, 64)
        self.conv = nn.Conv2d(1, 12, 5, stride=2)
        self.head = nn.Linear(64, 10)
        self.fc1 = nn.Linear(12 * 5 * 5, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv(x)).flatten(1)
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def batch(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 10, (8,), generator=generator)
    return torch.randn(8, 1, 13, 13, generator=generator) + labels.view(-1, 1, 1, 1) / 3, labels


def make(spec: Any, *, ddp: dict | None = None, net: nn.Module | None = None, **options):
    """Returns a model, its optimizer and its State; without a spec, plain DDP and None."""
    torch.manual_seed(7)
    model = DDP(net or Net(), bucket_cap_mb=0.02, **(ddp or {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    state = None
    if spec is not None:
        state = thinreduce.State(spec, model=model, optimizer=optimizer, **options)
        model.register_comm_hook(state, thinreduce.hook)
    return model, optimizer, state


def train(model, optimizer, steps, first: int = 0) -> float:
    loss = torch.zeros(())
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def digest(model: nn.Module) -> str:
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def same_on_all_ranks(model: nn.Module) -> str:
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model))
    assert len(set(digests)) == 1, "replicas have drifted apart"
    return digests[0]


def raises(kind: type | tuple[type, ...], text: str, work) -> str:
    try:
        work()
    except kind as error:
        assert text in str(error), f"'{text}' is not in: {error}"
        return str(error)
    raise AssertionError(f"nothing was raised; expected {kind} with '{text}'")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # DDP's first bucket would hold all of these models
    wanted = sys.argv[1:] or list(SCENARIOS)
    for name in wanted:
        try:
            SCENARIOS[name]()
            print(json.dumps({"scenario": name, "error": None}), flush=True)
        except BaseException:  # the test prints all of it
            print(json.dumps({"scenario": name, "error": traceback.format_exc()}), flush=True)
            if dist.get_world_size() > 1:
                os._exit(1)  # the others may be at another point: their waits must end
    dist.barrier()
    dist.destroy_process_group()
