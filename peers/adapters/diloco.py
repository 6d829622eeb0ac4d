"""A plain DiLoCo (arXiv 2311.08105) on torch.distributed: the mean of the changes of `every` local
steps is the gradient of an outer step with Nesterov momentum. With int8, the ranks exchange the
changes and their means as bytes with one scale per part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from . import Batch, Task, copy_flat, flat
from . import Trainer as Alone


def int8_mean(values: torch.Tensor) -> torch.Tensor:
    """Returns the mean over the ranks; each rank averages one part of it for all."""
    world = dist.get_world_size()
    parts = torch.nn.functional.pad(values, (0, -len(values) % world)).view(world, -1)
    scales = parts.abs().amax(1, keepdim=True) / 127 + 1e-20
    codes = (parts / scales).round().to(torch.int8)
    received, others = torch.empty_like(codes), torch.empty_like(scales)
    dist.all_to_all_single(received, codes)
    dist.all_to_all_single(others, scales)
    mean = (received * others).mean(0)
    scale = mean.abs().amax().view(1) / 127 + 1e-20
    means, steps = torch.empty_like(codes).flatten(), torch.empty(world)
    dist.all_gather_into_tensor(means, (mean / scale).round().to(torch.int8))
    dist.all_gather_into_tensor(steps, scale)
    return (means.view(world, -1) * steps.view(-1, 1)).flatten()[: len(values)]


class Trainer(Alone):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.parameters = list(self.module.parameters())
        self.int8, self.every, self.steps = task.options["int8"], task.options["every"], 0
        self.anchor = flat(self.parameters)
        dist.broadcast(self.anchor, 0)
        copy_flat(self.anchor, self.parameters)
        self.outer = torch.optim.SGD([self.anchor], lr=0.7, momentum=0.9, nesterov=True)

    def step(self, batch: Batch) -> None:
        super().step(batch)
        self.steps += 1
        if self.steps % self.every == 0:
            change = self.anchor - flat(self.parameters)
            if not self.int8:
                dist.all_reduce(change)
            self.anchor.grad = int8_mean(change) if self.int8 else change / dist.get_world_size()
            self.outer.step()
            copy_flat(self.anchor, self.parameters)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        own = flat(self.parameters)
        copy_flat(self.anchor, self.parameters)
        yield
        copy_flat(own, self.parameters)
