"""A rank of a training that loses rank 1, and gets a new rank in its place.

test_elastic.py starts ranks 0, 1 and 2 of the first world, and rank 2 of the second world, which
joins. They meet at MASTER_PORT, and at the port that is given.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

joins, transport, second_port = sys.argv[1] == "join", sys.argv[2], sys.argv[3]
leaves = sys.argv[1] == "leave"
STEPS, LAST_OF_FIRST_WORLD = 12, 5

torch.set_num_threads(1)
torch.manual_seed(7)
rank = int(os.environ["RANK"])
network = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 50))
if joins:
    for parameter in network.parameters():
        nn.init.zeros_(parameter)  # it gets those of the others
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
state = thinreduce.State("topk:density=0.1", transport=transport, timeout=600, patience=600)


def meet(rank: int, world: int, port: str | None = None) -> DDP:
    """Forms a new world, with a DDP model of the network."""
    if dist.is_initialized():
        dist.destroy_process_group()
    address = f"tcp://127.0.0.1:{port or os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    model = DDP(network)
    model.register_comm_hook(state, thinreduce.hook)
    return model


def meet_again(rank: int) -> tuple[DDP, thinreduce.Reconfiguration]:
    model = meet(rank, 3, second_port)
    return model, state.reconfigure()


if joins:
    model, change = meet_again(2)
    assert state.stats()["total"]["steps"] == 0
else:
    model = meet(rank, 3)
    change = None

step = 0 if change is None else change.steps
while step < STEPS:
    if rank == 1 and step == LAST_OF_FIRST_WORLD and not (joins or leaves):
        os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(step * 100 + rank)
    optimizer.zero_grad(set_to_none=True)
    leaving: list[int] = []
    try:
        with state.errors():
            model(torch.randn(16, 40)).square().mean().backward()
            goes = leaves and rank == 1 and step == LAST_OF_FIRST_WORLD - 1
            leaving = state.commit(leave=goes)
            if goes:
                state.close()
                sys.exit(0)
    except thinreduce.LostPeer:
        started = time.monotonic()
        del model  # and its hooks
        model, change = meet_again(0 if rank == 0 else 1)
        print(f"continued after {time.monotonic() - started:.2f} s: {change.text}", flush=True)
        if change.repeat:
            assert change.steps == step, (change, step)
            continue
    optimizer.step()
    step += 1
    if leaving:
        del model
        model, change = meet_again(0 if rank == 0 else 1)
        print(f"continued after 0 s: {change.text}", flush=True)

values = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
print("parameters", hashlib.sha256(values.numpy().tobytes()).hexdigest(), flush=True)
state.close()
