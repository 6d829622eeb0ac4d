"""hivemind's averager: the ranks average their parameters every few local steps, in 8 bits."""

from __future__ import annotations

import torch
import torch.distributed as dist
from hivemind import DHT, DecentralizedAverager
from hivemind.compression import Uniform8BitQuantization

from ..workloads import Batch
from . import Task
from . import Trainer as Alone


class Trainer(Alone):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.parameters = list(self.module.parameters())
        for one in self.parameters:
            dist.broadcast(one.data, 0)
        self.every, self.steps = task.options["every"], 0
        where = [f"/ip4/{task.address}/tcp/0"]
        first: list[list[str] | None] = [None]
        if dist.get_rank() == 0:
            self.dht = DHT(host_maddrs=where, start=True)
            first = [[str(one) for one in self.dht.get_visible_maddrs()]]
        dist.broadcast_object_list(first)
        if dist.get_rank() != 0:
            self.dht = DHT(host_maddrs=where, initial_peers=first[0], start=True)
        self.averager = DecentralizedAverager(
            [one.detach().clone() for one in self.parameters],
            self.dht,
            prefix="peers",
            target_group_size=dist.get_world_size(),
            min_group_size=dist.get_world_size(),
            compression=Uniform8BitQuantization(),
            start=True,
        )

    def step(self, batch: Batch) -> None:
        super().step(batch)
        self.steps += 1
        if self.steps % self.every == 0:
            with self.averager.get_tensors() as shared, torch.no_grad():
                for tensor, one in zip(shared, self.parameters):
                    tensor.copy_(one)
            # The timeout of step() does not end its wait.
            if self.averager.step(wait=False, timeout=60).result(timeout=120) is None:
                raise RuntimeError("hivemind found no group of all ranks")
            with self.averager.get_tensors() as shared, torch.no_grad():
                for tensor, one in zip(shared, self.parameters):
                    one.copy_(tensor)

    def close(self) -> None:
        self.averager.shutdown()
        self.dht.shutdown()
