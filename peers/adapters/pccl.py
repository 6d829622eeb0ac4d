"""PCCL: the ranks average their gradients with its communicator."""

from __future__ import annotations

import torch.distributed as dist
from pccl import Communicator

from ..workloads import Batch
from . import Task, copy_flat, flat
from . import Trainer as Alone


class Trainer(Alone):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.parameters = list(self.module.parameters())
        master: list[str] = [f"{task.address}:48148"]
        dist.broadcast_object_list(master)
        self.communicator = Communicator(master[0], 0)
        self.communicator.connect()

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        self.workload.training_loss(self.model, batch).backward()
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        mean = flat(gradients)
        self.communicator.all_reduce(mean, mean)
        copy_flat(mean / dist.get_world_size(), gradients)
        self.optimizer.step()
        self.schedule.step()
