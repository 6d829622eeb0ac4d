"""The work of the ranks until a fault ends it: they reduce arrays, or train a model with DDP."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import oracle
from world import Body, LastWords

import thinreduce

# Steps after which all connections and buckets are known to work.
FIRST_STEPS = 3


def reduce_arrays(
    connect: Callable[[int], thinreduce.Comm],
    spec: str,
    expected: list[bytes],
    steps: int | None = None,
    before: Callable[[int, int], None] = lambda rank, step: None,
) -> Body:
    """Reduces `steps` arrays, or arrays without end, and compares the means. `before(rank, step)`
    is called in front of every step."""

    def body(rank: int, words: LastWords, running: Callable[[], None]) -> None:
        with connect(rank) as comm:
            for step in itertools.count() if steps is None else range(steps):
                before(rank, step)
                with words.of_error():
                    mean = comm.all_reduce_mean(oracle.gradient(rank, step), spec)
                if step < len(expected):
                    words.checked += 1
                    words.wrong += oracle.digest(mean) != expected[step]
                else:
                    time.sleep(0.001)
                if step == FIRST_STEPS:
                    running()

    return body


def train(
    world: int,
    port: int,
    *,
    transport: str,
    workers: int,
    steps: int | None = None,
    before: Callable[[int], None] = lambda step: None,
) -> Body:
    """Trains a model with DDP. The samples come from `workers` processes of a DataLoader.
    `before(step)` is called in front of every step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return itertools.repeat(torch.ones(64))

    def body(rank: int, words: LastWords, running: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        state = thinreduce.State("topk", transport=transport, timeout=30, patience=45)
        model.register_comm_hook(state, thinreduce.hook)
        samples = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=workers)
        for step, batch in enumerate(itertools.islice(samples, steps)):
            before(step)
            with words.of_error(), state.errors():
                model(batch).sum().backward()
            if step == FIRST_STEPS:
                running()
        state.close()
        dist.destroy_process_group()

    return body
