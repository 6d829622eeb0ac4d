"""The wall clocks of ranks jump, each by itself, while they reduce arrays.

The scenario starts this file again as a program whose clock can jump (jumping_clock.c).
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bodies
import faults
import oracle
from trial import Trial
from world import World, free_port

_DAY = 86400
_STEPS = oracle.STEPS


@functools.cache
def _library() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    source = Path(__file__).with_name("jumping_clock.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", f"{folder.name}/clock.so", str(source)]
    subprocess.run(command, check=True)
    return folder


def jump(numbers: random.Random) -> Trial:
    """The wall clock of every rank jumps at some step, by up to ten years; nothing must happen."""
    command = [sys.executable, __file__, str(numbers.getrandbits(32))]
    environment = {**os.environ, "LD_PRELOAD": f"{_library().name}/clock.so"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return Trial(**json.loads(done.stdout))


def _run(numbers: random.Random) -> Trial:
    size, spec = numbers.randint(2, 4), numbers.choice(oracle.SPECS)
    jumps = [(numbers.randrange(_STEPS), _offset(numbers)) for _ in range(size)]
    offset = ctypes.c_long.in_dll(ctypes.CDLL(None), "clock_offset_seconds")

    def before(rank: int, step: int) -> None:
        at, seconds = jumps[rank]
        if step == at:
            now = time.time()
            offset.value = seconds
            assert abs(time.time() - now - seconds) < 60, "the clock did not jump"

    connect = faults.connect_at(size, free_port(), timeout=5, patience=20)
    expected = oracle.expected(spec, size)
    with World(size, bodies.reduce_arrays(connect, spec, expected, _STEPS, before)) as world:
        words = world.last_words(range(size))
    trial = Trial(outcome="no effect")
    for rank, said in words.items():
        if said is None or said.error or said.wrong or said.checked != _STEPS:
            trial.failure = f"rank {rank}: {said}"
        if said is None:
            trial.hung += 1
        else:
            trial.checked += said.checked
            trial.wrong += said.wrong
    return trial


def _offset(numbers: random.Random) -> int:
    limit = numbers.choice([2, 3600, _DAY, 3650 * _DAY])
    return numbers.randint(-limit, limit)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_run(random.Random(int(sys.argv[1]))))))
