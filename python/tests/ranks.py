"""Runs ranks as processes, with a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from forked_ranks import ForkedRank
from ports import free_port

ROOT = Path(__file__).parents[2]

# Seconds until a test calls a process hung. Long, because a machine may be busy with other work.
PATIENCE = 600

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
