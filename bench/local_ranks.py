"""Runs a benchmark script as several ranks on this machine, and times steps on all of them at once.

A script calls :func:`reports`, which starts it again per rank with ``--inside``; rank 0 prints one
JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable


def parse(
    parser: argparse.ArgumentParser, methods: Sequence[str], *, steps: int, warmup: int
) -> argparse.Namespace:
    """Parses the arguments of a script, with those that all of them have."""
    parser.add_argument("--steps", type=int, default=steps, help="timed steps per method")
    parser.add_argument(
        "--warmup", type=int, default=warmup, help="steps per method that are not timed"
    )
    parser.add_argument("--method", action="append", help=f"default: {' '.join(methods)}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.method = args.method or list(methods)
    return args


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def reports(
    ranks: int,
    *,
    address: str = "127.0.0.1",
    environment: Mapping[str, str] | None = None,
    within: Callable[[int], list[str]] = lambda rank: [],
) -> Iterator[dict[str, Any]]:
    """Starts this script as ``ranks`` ranks and yields the objects that rank 0 prints.

    ``within(rank)`` is a command that runs the rank, such as ``ip netns exec``. Ends this process
    with an error if a rank fails.
    """
    command = [sys.executable, str(Path(sys.argv[0]).resolve()), "--inside", *sys.argv[1:]]
    common = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }
    started = [
        subprocess.Popen(
            [*within(rank), *command],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(ranks)
    ]
    assert started[0].stdout is not None
    for line in started[0].stdout:
        yield json.loads(line)
    failed = max(rank.wait() for rank in started)
    if failed:
        sys.exit(failed)


def slowest(seconds: Sequence[float]) -> list[float]:
    """Returns each of the times of the rank on which it is longest."""
    import torch
    import torch.distributed as dist

    times = torch.tensor(seconds)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def time_on_all(work: Callable[[], None]) -> float:
    """Returns the seconds that ``work`` takes on the slowest rank; all ranks start it together."""
    import torch.distributed as dist

    dist.barrier()
    started = time.monotonic()
    work()
    return slowest([time.monotonic() - started])[0]


def time_rounds(
    methods: Sequence[str], step: Callable[[str], Any], *, warmup: int, steps: int
) -> dict[str, list[Any]]:
    """Returns what ``step(method)`` returned per method. In each round all methods take a step; the
    first ``warmup`` rounds are left out."""
    times: dict[str, list[Any]] = {method: [] for method in methods}
    for number in range(warmup + steps):
        for method in methods:
            taken = step(method)
            if number >= warmup:
                times[method].append(taken)
    return times


def leave(states: Iterable[Any]) -> None:
    """Closes the sessions when all ranks have come here, and leaves the process group."""
    import torch.distributed as dist

    dist.barrier()
    for state in states:
        state.close()
    dist.destroy_process_group()
