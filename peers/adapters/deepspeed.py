"""DeepSpeed's engine with 1-bit Adam, which needs its communication backend."""

from __future__ import annotations

import deepspeed

from ..workloads import Batch
from . import Task
from . import Trainer as Alone


class Trainer(Alone):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        rate = task.workload.learning_rate
        optimizer = {"lr": rate, "weight_decay": task.workload.weight_decay}
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.module,
            model_parameters=list(self.module.parameters()),
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": task.workload.batch,
                "optimizer": {
                    "type": "OneBitAdam",
                    "params": {**optimizer, **task.options["onebit"]},
                },
            },
        )
        self.schedule = task.workload.schedule(self.optimizer, task.steps)

    def step(self, batch: Batch) -> None:
        self.engine.backward(self.workload.training_loss(self.engine, batch))
        self.engine.step()
        self.schedule.step()
