"""A rank that reduces one array with a secret of its own. test_secret.py starts it.

Arguments: the transport, then one secret per rank; "-" is none, "env" that of the environment.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

torch.set_num_threads(1)
transport, *secrets = sys.argv[1:]
given = secrets[int(os.environ["RANK"])]
secret = None if given == "env" else given.replace("-", "")
dist.init_process_group("gloo")
model = DDP(nn.Linear(64, 64))
state = thinreduce.State("dqsg", transport=transport, secret=secret, connect_timeout=60)
model.register_comm_hook(state, thinreduce.hook)
try:
    with state.errors():
        model(torch.ones(4, 64)).sum().backward()
    mean = torch.cat([one.grad.flatten() for one in model.parameters()])
    other = mean.clone()
    dist.broadcast(other, 0)
    print("same" if torch.equal(mean, other) else "different", flush=True)
except thinreduce.Error as error:
    print(f"{error.code}: {error}", flush=True)
# The store of rank 0 must live until all have read it.
dist.barrier()
