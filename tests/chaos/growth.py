"""Long runs that must not grow: many steps of one session, many sessions of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bodies
import faults
import oracle
from trial import Trial
from world import LastWords, World, free_port

import thinreduce

# Memory that allocators may take and keep in between.
SLACK = 4 << 20


def _usage() -> dict[str, int]:
    """Returns the memory in bytes, the threads and the descriptors of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "bytes": resident,
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


class _Watch:
    """Compares what a process uses in the second and in the last tenth of its rounds. Something
    that is in use only for a moment, such as the descriptor of a batch that a DataLoader's worker
    hands over, is not growth: the min of the last tenth must not exceed the max of the second."""

    def __init__(self, rounds: int) -> None:
        tenth = max(rounds // 10, 1)
        self._early = range(tenth, 2 * tenth)
        self._late = range(max(rounds - tenth, 2 * tenth), rounds)
        self._max: dict[str, int] = {}
        self._min: dict[str, int] = {}

    def look(self, round: int) -> None:
        if round in self._early:
            self._max = {name: max(n, self._max.get(name, n)) for name, n in _usage().items()}
        if round not in self._late:
            return
        self._min = {name: min(n, self._min.get(name, n)) for name, n in _usage().items()}
        if round != self._late[-1]:
            return
        more = {name: n - self._max[name] for name, n in self._min.items()}
        if more["bytes"] > SLACK or more["threads"] > 0 or more["descriptors"] > 0:
            raise RuntimeError(f"the process has grown: {more}")


def _judge(words: dict[int, LastWords | None], outcome: str) -> Trial:
    trial = Trial(outcome=outcome)
    for rank, said in words.items():
        if said is None or said.error or said.wrong:
            trial.failure = f"rank {rank}: {said}"
        trial.hung += said is None
        trial.checked += said.checked if said else 0
        trial.wrong += said.wrong if said else 0
    return trial


def steps_of_arrays(count: int) -> Trial:
    watch = _Watch(count)
    connect = faults.connect_at(2, free_port())
    body = bodies.reduce_arrays(
        connect, "topk", oracle.expected("topk", 2), count, lambda _, step: watch.look(step)
    )
    with World(2, body) as world:
        return _judge(world.last_words(range(2), limit=3600), f"{count} steps")


def steps_of_ddp(count: int) -> Trial:
    watch = _Watch(count)
    body = bodies.train(2, free_port(), transport="gloo", workers=2, steps=count, before=watch.look)
    with World(2, body) as world:
        return _judge(world.last_words(range(2), limit=3600), f"{count} steps")


def sessions(count: int) -> Trial:
    """Two ranks, threads of one process, connect, reduce an array and close, again and again."""
    expected = oracle.expected("topk", 2)[0]

    def body(_: int, words: LastWords, running: Callable[[], None]) -> None:
        watch = _Watch(count)
        port = free_port()

        def run(rank: int) -> bool:
            with thinreduce.connect(rank, 2, f"127.0.0.1:{port}") as comm:
                mean = comm.all_reduce_mean(oracle.gradient(rank, 0), "topk")
                return oracle.digest(mean) == expected

        with ThreadPoolExecutor(2) as pool:
            for number in range(count):
                right = list(pool.map(run, range(2)))
                words.checked += len(right)
                words.wrong += right.count(False)
                watch.look(number)

    with World(1, body) as world:
        return _judge(world.last_words(range(1), limit=3600), f"{count} sessions")
