"""Modules that ranks import, for the process that forks them (forked_ranks.py)."""

import contextlib

import torch.distributed
import torch.nn.functional
import torch.nn.parallel

import thinreduce
import thinreduce.ddp
import thinreduce.local_steps
import thinreduce.second_moment
import thinreduce.world

# PyTorch 2 imports these when a model is wrapped and when an optimizer steps.
with contextlib.suppress(ImportError):
    import torch._dynamo
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
