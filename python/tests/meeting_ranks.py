"""A rank that trains one step and ends. test_meeting.py starts it."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

torch.set_num_threads(1)
if len(sys.argv) > 1:  # a file through which the ranks meet, instead of MASTER_ADDR
    rank, world = int(sys.argv[2]), int(sys.argv[3])
    where = f"file://{sys.argv[1]}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
else:
    dist.init_process_group("gloo")
model = DDP(nn.Linear(64, 64))
state = thinreduce.State("topk", timeout=60)
model.register_comm_hook(state, thinreduce.hook)
model(torch.ones(4, 64)).sum().backward()
dist.barrier()
print("done", flush=True)
