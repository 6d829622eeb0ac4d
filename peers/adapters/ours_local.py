"""thinreduce's local steps."""

from __future__ import annotations

import contextlib
from typing import Any

import thinreduce

from ..workloads import Batch
from . import Task
from . import Trainer as Alone


class Trainer(Alone):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        arguments = task.options["arguments"]
        self.sync = thinreduce.LocalSteps(
            self.module, seed=task.seed, interface=task.interface, **arguments
        )

    def step(self, batch: Batch) -> None:
        super().step(batch)
        self.sync.step()

    def shared(self) -> contextlib.AbstractContextManager[Any]:
        return self.sync.shared_parameters()

    def close(self) -> None:
        self.sync.close()
