"""A user's script, which must pass `mypy --strict` with the installed package. test_wheel.py checks
it; nothing runs it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

import thinreduce


def train(model: DistributedDataParallel, batches: list[torch.Tensor]) -> float:
    optimizer = torch.optim.AdamW(model.parameters())
    rules = {"fc.*": "powersgd:basis=2", "*": "dqsg"}
    state = thinreduce.State(rules, model=model, optimizer=optimizer, transport="torch")
    model.register_comm_hook(state, thinreduce.hook)
    for batch in batches:
        try:
            with state.errors():
                model(batch).sum().backward()
        except thinreduce.LostPeer as error:
            print(error.code, error)
            raise
        optimizer.step()
    saved: dict[str, object] = state.state_dict()
    state.load_state_dict(saved)
    ratio: float = state.stats()["ratio"]
    return ratio


def shard(model: torch.nn.Module) -> float:
    state = thinreduce.fsdp.attach(model, "dqsg", link="1gbit")
    entry = thinreduce.checkpoint.PerRank(state)
    entry.load_state_dict(entry.state_dict())
    ratio: float = state.stats()["ratio"]
    return ratio


def mean(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
    with thinreduce.connect(0, 1, "127.0.0.1:29400") as comm:
        return comm.all_reduce_mean(gradient, "dqsg:levels=7", name="gradient")


def sizes(gradient: NDArray[np.float32]) -> dict[str, float]:
    return {one.name: thinreduce.encode(gradient, one.name).ratio for one in thinreduce.methods()}
