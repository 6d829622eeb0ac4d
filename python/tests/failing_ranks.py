"""A rank that dies, stops or computes for long in the middle of a run.

test_failures.py starts it, with what happens, to which rank, and the transport.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

what, victim, transport = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
# Rank `victim` stops in the middle of a message of 50 MB, and is killed by the test.
middle = what == "middle"


def bytes_written() -> int:
    with open("/proc/self/io") as counters:
        return int(next(line for line in counters if line.startswith("wchar")).split()[1])


def stop_after(more: int) -> None:
    first = bytes_written()
    while bytes_written() < first + more:
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGSTOP)


width = 4096 if middle else 64
if what == "local":
    model = nn.Linear(64, 64)
    sync = thinreduce.LocalSteps(
        model, "topk", every=4, overlap=1, transport=transport, timeout=600, patience=600
    )
else:
    model = DDP(nn.Linear(width, width))
    state = thinreduce.State(
        "topk:density=0.5" if middle else "topk",
        transport=transport,
        # Shorter than a busy rank computes, and long enough for one that this machine holds up.
        timeout=3 if what == "busy" else 600,
        # Long enough for ranks that a busy machine holds up, and shorter than the victim sleeps.
        patience=10 if what == "late" and rank != victim else 600,
    )
    model.register_comm_hook(state, thinreduce.hook)
started = time.monotonic()
try:
    for step in range(10 if what == "busy" else 1000):
        if step == (1 if middle else 5):  # steps of the large model take seconds
            print("running", flush=True)
            started = time.monotonic()
            if rank == victim and what in ("busy", "late"):
                time.sleep(7 if what == "busy" else 25)
            elif rank == victim and middle:
                threading.Thread(target=stop_after, args=[10_000_000]).start()
            elif rank == victim:
                if what == "orphan" and os.fork() == 0:
                    os.closerange(0, 3)  # the test reads until these are closed
                    time.sleep(400)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        model(torch.ones(4, width)).sum().backward()
        if what == "local":
            sync.step()
        time.sleep(0.01)
except RuntimeError as error:
    if what not in ("kill", "orphan", "late", "local", "middle"):
        raise
    print(f"after {time.monotonic() - started:.1f} s: {error}", flush=True)
    raised = error if what == "local" else state.error
    print(f"error: {type(raised).__name__}", flush=True)
    os._exit(4)
