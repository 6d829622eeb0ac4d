"""thinreduce's hook for DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import thinreduce

from . import DdpTrainer, Task


class Trainer(DdpTrainer):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        spec = task.options["spec"]
        moments = thinreduce.SecondMoment(self.model) if spec.startswith("variance") else None
        self.state = thinreduce.State(
            spec,
            model=self.model,
            optimizer=self.optimizer,
            second_moment=moments,
            seed=task.seed,
            interface=task.interface,
        )
        self.model.register_comm_hook(self.state, thinreduce.hook)

    def notes(self) -> dict[str, Any]:
        plan = self.state.plan() or {}
        chosen = [one["spec"] for one in plan.get("buckets", [])]
        ratio = {"ratio": self.state.stats()["ratio"]}
        return {**ratio, "chosen": chosen, "reason": plan["reason"]} if chosen else ratio

    def close(self) -> None:
        self.state.close()
