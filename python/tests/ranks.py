"""Runs ranks as processes, with a time limit."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from forked_ranks import ForkedRank

ROOT = Path(__file__).parents[2]

# Seconds until a test calls a process hung. Long, because a machine may be busy with other work.
PATIENCE = 600


# Below the ports of the C++ tests, which leave many of theirs in TIME_WAIT, and of the system.
PORTS = range(2048, 10000)
RESERVED = Path(tempfile.gettempdir()) / f"thinreduce-test-ports-{os.getuid()}"


def free_port() -> int:
    """Returns a port that nothing uses and that no other test gets.

    A rank binds it seconds later; until then a file reserves it, for an hour at most.
    """
    RESERVED.mkdir(exist_ok=True)
    while True:
        port = random.SystemRandom().choice(PORTS)
        reserved = RESERVED / str(port)
        try:
            reserved.touch(exist_ok=False)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - reserved.stat().st_mtime > 3600:
                    reserved.unlink()
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


Rank = Union["subprocess.Popen[str]", ForkedRank]


def start_rank(
    script: Path, *args: str, environment: Mapping[str, str], fresh: bool = False
) -> Rank:
    """Starts a rank: forks a process that has imported torch, or with ``fresh`` starts a Python."""
    if not fresh:
        return ForkedRank(script, args, environment)
    return subprocess.Popen(
        [sys.executable, str(script), *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(
    script: Path,
    world: int,
    *args: str,
    environment: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> list[Rank]:
    """Starts all ranks of a script."""
    shared = {
        **os.environ,
        **(environment or {}),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    return [
        start_rank(script, *args, environment={**shared, "RANK": str(rank)}, fresh=fresh)
        for rank in range(world)
    ]


def finish(ranks: list[Rank]) -> list[tuple[int, str, str]]:
    """Returns exit code, output and errors of every rank; kills those that hang."""
    deadline = time.monotonic() + PATIENCE
    results = []
    for rank in ranks:
        try:
            out, err = rank.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            out, err = rank.communicate()
            err += f"\nkilled by the test after {PATIENCE} s"
        results.append((rank.returncode, out, err))
    return results
