"""One rank of the measurements; `measure.py` starts it.

It imports torch once, and then forks for every order that it reads from standard input, a line of
JSON. It prints the process id of the child, and its exit code when it has ended. The child of rank
0 writes the result to a file.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .adapters import Task, Trainer
from .workloads import WORKLOADS


def mean_over_ranks(values: list[float]) -> list[float]:
    shared = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(shared)
    return (shared / dist.get_world_size()).tolist()


def of_all_ranks(value: float) -> list[float]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def bytes_sent(interface: str) -> int:
    """Returns the bytes that have left this namespace, with headers."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[8])
    raise ValueError(f"there is no interface {interface} in this namespace")


def cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def machine_seconds() -> float:
    """Returns the processor time of all programs so far."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def evaluate(trainer: Trainer) -> float:
    total, samples = 0.0, 0
    trainer.module.eval()
    with trainer.shared(), torch.no_grad():
        for batch in trainer.workload.held_out():
            total += trainer.workload.loss(trainer.module, batch).item() * len(batch[0])
            samples += len(batch[0])
    trainer.module.train()
    both = mean_over_ranks([total, samples])
    return both[0] / both[1]


def train(trainer: Trainer, asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the loss on the held-out data over the steps."""
    curve = [(0, evaluate(trainer))]
    for step in range(1, asked["steps"] + 1):
        trainer.step(trainer.workload.next_batch())
        if step % asked["evaluate_every"] == 0:
            curve.append((step, evaluate(trainer)))
            if dist.get_rank() == 0:
                print(f"step {step}: loss {curve[-1][1]:.4f}", file=sys.stderr, flush=True)
    return {"curve": curve}


def time_steps(trainer: Trainer, asked: dict[str, Any], interface: str) -> dict[str, Any]:
    """Returns the seconds, bytes and processor time per step after some untimed ones.

    There is no barrier between the steps, so that a contender may overlap them.
    """
    batches = [trainer.workload.next_batch() for _ in range(10)]
    for step in range(asked["warmup"]):
        trainer.step(batches[step % 10])
    dist.barrier()
    sent, used, ends = bytes_sent(interface), cpu_seconds(), [time.monotonic()]
    everyone = machine_seconds()
    for step in range(asked["timed"]):
        trainer.step(batches[step % 10])
        ends.append(time.monotonic())
    used, everyone = cpu_seconds() - used, machine_seconds() - everyone
    seconds = max(of_all_ranks(ends[-1] - ends[0]))
    sent = bytes_sent(interface) - sent
    # All ranks share the loopback interface.
    shared = dist.get_world_size() if interface == "lo" else 1
    return {
        "step_seconds": seconds / asked["timed"],
        "step_times": [round(b - a, 6) for a, b in zip(ends, ends[1:])],
        "bytes_per_step": max(of_all_ranks(sent)) / asked["timed"] / shared,
        "cpu_seconds": max(of_all_ranks(used)) / asked["timed"],
        # Processors that other programs, and the kernel's network, had meanwhile.
        "other_cores": round((everyone - sum(of_all_ranks(used))) / seconds, 3),
    }


def work(asked: dict[str, Any]) -> dict[str, Any]:
    """Trains or times a contender, together with the other ranks."""
    interface, address = os.environ["PEERS_INTERFACE"], os.environ["PEERS_ADDRESS"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workload = WORKLOADS[asked["workload"]](asked["seed"], dist.get_rank(), dist.get_world_size())
    adapter = importlib.import_module(f"peers.adapters.{asked['adapter']}")
    trainer = adapter.Trainer(
        Task(workload, asked["steps"], asked["seed"], interface, address, asked["options"])
    )
    timed = "timed" in asked
    found = time_steps(trainer, asked, interface) if timed else train(trainer, asked)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["memory_mb"] = max(of_all_ranks(memory))
    found["notes"] = trainer.notes()
    dist.barrier()
    trainer.close()
    dist.barrier()
    dist.destroy_process_group()
    return found


def child(order: dict[str, Any]) -> int:
    """Does the work in a session of its own, with a log of its own; returns the exit code."""
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ["MASTER_PORT"] = str(order["port"])
    try:
        found = work(order["asked"])
    except BaseException:
        traceback.print_exc()
        return 1
    if os.environ["RANK"] == "0":
        Path(order["result"]).write_text(json.dumps(found))
    return 0


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = child(order)
            sys.stderr.flush()
            os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
