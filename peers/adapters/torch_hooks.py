"""DistributedDataParallel with the hooks that torch comes with."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from . import DdpTrainer, Task

# By default torch starts PowerSGD after 1,000 steps.
POWERSGD_START = 10


class Trainer(DdpTrainer):
    def wrapped(self, task: Task) -> nn.Module:
        hook = task.options["hook"]
        if hook == "powersgd":
            # Its exchanges start from callbacks. With more than one bucket their order differs
            # between ranks, and Gloo ends the process; so the whole gradient is one bucket.
            dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
        model = super().wrapped(task)
        if hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=task.options["rank"],
                start_powerSGD_iter=POWERSGD_START,
                random_seed=task.seed,
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook:
            compress = getattr(default_hooks, f"{hook}_compress_hook")

            # DDP refuses the hook for bf16 by its name where there is no CUDA; Gloo can add bf16.
            def call(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
                return compress(group, bucket)

            model.register_comm_hook(None, call)
        return model
