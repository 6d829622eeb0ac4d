"""One module per contender: its trainer, in at most 60 lines. Only ranks import these modules."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..workloads import Batch, Workload


@dataclass(frozen=True)
class Task:
    """What a contender has to train, and where."""

    workload: Workload
    steps: int  # length of the learning rate's schedule
    seed: int
    interface: str  # name of the network interface between the ranks
    address: str  # this rank's, on that interface
    options: dict[str, Any]  # the contender's own


class Trainer:
    """Trains alone; a contender changes what it must."""

    def __init__(self, task: Task) -> None:
        self.workload = task.workload
        self.module = task.workload.module()
        self.model = self.wrapped(task)
        self.optimizer = task.workload.optimizer(task.workload.groups(self.module))
        self.schedule = task.workload.schedule(self.optimizer, task.steps)

    def wrapped(self, task: Task) -> nn.Module:
        """Returns the model that is called in a step."""
        return self.module

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        self.workload.training_loss(self.model, batch).backward()
        self.optimizer.step()
        self.schedule.step()

    def shared(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which `module` has the parameters that the ranks share."""
        return contextlib.nullcontext()

    def notes(self) -> dict[str, Any]:
        """Returns what is worth keeping beside the figures."""
        return {}

    def close(self) -> None:
        pass


class DdpTrainer(Trainer):
    def wrapped(self, task: Task) -> nn.Module:
        return DistributedDataParallel(self.module, **task.options.get("ddp", {}))


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in tensors])


def copy_flat(values: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copies parts of `values` to the tensors, in order."""
    with torch.no_grad():
        for tensor, part in zip(tensors, values.split([one.numel() for one in tensors])):
            tensor.copy_(part.view_as(tensor))
