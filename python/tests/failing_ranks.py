"""A rank that dies, stops or computes for long in the middle of a run.

test_failures.py starts it, with what happens, to which rank, and the transport.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

what, victim, transport = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
# Rank `victim` stops in the middle of a message of many megabytes, and is killed by the test.
middle = what == "middle"
width = 4096 if middle else 64
model = DDP(nn.Linear(width, width))
state = thinreduce.State(
    "fp32" if middle else "topk",
    transport=transport,
    timeout=1 if what == "busy" else 600,
    patience=1 if what == "late" and rank != victim else 600,
)
model.register_comm_hook(state, thinreduce.hook)
started = time.monotonic()
try:
    for step in range(10 if what == "busy" else 1000):
        if step == 5:
            print("running", flush=True)
            started = time.monotonic()
            if rank == victim and what in ("busy", "late"):
                time.sleep(3)
            elif rank == victim and middle:
                stop = partial(os.kill, os.getpid(), signal.SIGSTOP)
                threading.Timer(0.05, stop).start()
            elif rank == victim:
                if what == "orphan" and os.fork() == 0:
                    os.closerange(0, 3)  # the test reads until these are closed
                    time.sleep(400)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        model(torch.ones(4, width)).sum().backward()
        time.sleep(0.01)
except RuntimeError as error:
    if what not in ("kill", "orphan", "late", "middle"):
        raise
    print(f"after {time.monotonic() - started:.1f} s: {error}", flush=True)
    print(f"error: {type(state.error).__name__}", flush=True)
    os._exit(4)
