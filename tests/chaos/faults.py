"""Faults of ranks and of the network between them. Every function runs one trial."""

from __future__ import annotations

import functools
import random
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bodies
import oracle
from proxy import Fault, Proxy, Stream
from thinreduce._arguments import SessionArguments
from thinreduce.comm import Comm
from trial import Trial, judge
from world import LastWords, World, free_port

import thinreduce
from thinreduce import _core

# Seconds of silence after which a rank that is stopped or cut off is named.
SILENCE = 1.5
# Seconds that a rank waits for others that are alive, where a fault can leave all of them waiting.
PATIENCE = 4.0
SECRET = "chaos needs no secret, but has one"


def _pause(random_numbers: random.Random) -> None:
    time.sleep(random_numbers.uniform(0, 0.1))


def connect_at(world: int, port: int, **limits: float) -> Callable[[int], Comm]:
    where = f"127.0.0.1:{port}"
    return lambda rank: thinreduce.connect(rank, world, where, connect_timeout=30, **limits)


def kill(numbers: random.Random) -> Trial:
    """A rank is killed while it reduces arrays."""
    size, spec = numbers.randint(2, 5), numbers.choice(oracle.SPECS)
    victim = numbers.randrange(size)
    expected = oracle.expected(spec, size)
    with World(size, bodies.reduce_arrays(connect_at(size, free_port()), spec, expected)) as world:
        return _kill(world, size, victim, numbers)


def _kill(world: World, size: int, victim: int, numbers: random.Random) -> Trial:
    world.wait_until_running()
    _pause(numbers)
    began = world.signal(victim, signal.SIGKILL)
    words = world.last_words(rank for rank in range(size) if rank != victim)
    # PyTorch's connections say that the rank has closed them.
    culprit = rf"(lost|connection to) rank {victim}\b|rank {victim} (has left|closed)"
    return judge(words, began=began, culprit=culprit, errors=["LostPeer"])


def kill_ddp(numbers: random.Random, *, transport: str = "gloo", workers: int = 0) -> Trial:
    """A rank is killed while it trains with DDP."""
    size = numbers.randint(2, 3)
    body = bodies.train(size, free_port(), transport=transport, workers=workers)
    with World(size, body) as world:
        return _kill(world, size, numbers.randrange(size), numbers)


def stop(numbers: random.Random) -> Trial:
    """A rank is stopped, and goes on when all others have named it."""
    size, spec = numbers.randint(2, 4), numbers.choice(oracle.SPECS)
    victim = numbers.randrange(size)
    connect = connect_at(size, free_port(), timeout=SILENCE)
    with World(size, bodies.reduce_arrays(connect, spec, oracle.expected(spec, size))) as world:
        world.wait_until_running()
        _pause(numbers)
        began = world.signal(victim, signal.SIGSTOP)
        words = world.last_words(rank for rank in range(size) if rank != victim)
        world.signal(victim, signal.SIGCONT)
        woken = world.last_words([victim])
        trial = judge(
            words,
            began=began,
            culprit=rf"no sign of life from rank {victim} ",
            errors=["Timeout", "LostPeer"],
        )
        if woken[victim] is None or not woken[victim].error:
            trial.failure = f"rank {victim} hangs or went on after it was woken"
        return trial


@contextmanager
def _through_proxy(
    size: int, spec: str, fault: Fault | None, *, secret: str, steps: int | None
) -> Iterator[tuple[World, Any]]:
    """Yields a world whose connections go through a proxy, and the pipe to the proxy."""
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(size, Path(folder), fault)
        context = get_context("fork")
        pipe, theirs = context.Pipe()
        server = context.Process(target=proxy.serve, args=(theirs,))
        server.start()
        proxy.close()
        arguments = SessionArguments(
            timeout=SILENCE,
            patience=PATIENCE,
            min_size=1024,
            seed=0,
            check_replicas_every=100,
            threads=1,
        )

        def connect(rank: int) -> Comm:
            where = _core.Where(rank=rank, world=size, timeout=15, secret=secret)
            return Comm(_core.connect_through(where, proxy.board), arguments.options())

        try:
            expected = oracle.expected(spec, size)
            with World(size, bodies.reduce_arrays(connect, spec, expected, steps)) as world:
                yield world, pipe
        finally:
            server.kill()
            server.join()


def cut(numbers: random.Random) -> Trial:
    """No byte comes from a rank or reaches it any more; all connections stay open."""
    size, spec = numbers.randint(3, 4), numbers.choice(oracle.SPECS)
    victim = numbers.randrange(size)
    with _through_proxy(size, spec, None, secret="", steps=None) as (world, proxy):
        world.wait_until_running()
        _pause(numbers)
        proxy.send(victim)
        began = proxy.recv()
        words = world.last_words(range(size))
        own = words.pop(victim)
        trial = judge(
            words,
            began=began,
            culprit=rf"no sign of life from rank {victim} ",
            errors=["Timeout", "LostPeer"],
        )
        if own is None or own.error != "Timeout":
            trial.failure = f"the rank that is cut off, {victim}, says {own}"
        return trial


# Ranks and steps of the trials that alter bytes.
_RANKS, _STEPS = 3, 8


@functools.cache
def _bytes_per_stream(spec: str, secret: str, steps: int) -> dict[Stream, int]:
    """Returns the bytes that all streams of a run without faults have."""
    with _through_proxy(_RANKS, spec, None, secret=secret, steps=steps) as (world, proxy):
        words = world.last_words(range(_RANKS))
        if any(one is None or one.error or one.wrong for one in words.values()):
            raise RuntimeError(f"a run without faults fails: {words}")
        proxy.send("end")
        counts: dict[Stream, int] = proxy.recv()[1]
        return counts


def alter(numbers: random.Random, *, kind: str) -> Trial:
    """One bit is flipped, or up to 64 bytes are dropped or come twice."""
    while True:
        spec = numbers.choice(oracle.SPECS)
        secret = numbers.choice(["", SECRET])
        fault = _choose_fault(numbers, spec, secret, kind)
        with _through_proxy(_RANKS, spec, fault, secret=secret, steps=_STEPS) as (world, proxy):
            words = world.last_words(range(_RANKS))
            proxy.send("end")
            began, _ = proxy.recv()
            signals = {rank: world.ended_by(rank) for rank in range(_RANKS)}
        if began:  # some streams have a few bytes less than last time
            return _judge_altered(words, signals, began, sender=fault.stream[0])


def _choose_fault(numbers: random.Random, spec: str, secret: str, kind: str) -> Fault:
    """Chooses a byte: in one of 10 trials while the ranks connect and the session starts, in the
    others while arrays are reduced. All bytes are equally likely, those of Gloo and of the
    lifelines included."""
    begin = _bytes_per_stream(spec, secret, 0)
    end = _bytes_per_stream(spec, secret, _STEPS)
    if numbers.random() < 0.1:
        begin, end = dict.fromkeys(end, 0), begin
    counts = sorted((stream, end[stream] - begin[stream]) for stream in end)
    stream, size = numbers.choices(counts, [max(count, 0) for _, count in counts])[0]
    offset = begin[stream] + numbers.randrange(size)
    return Fault(stream, kind, offset, numbers.randrange(8), numbers.randint(1, 64))


def _judge_altered(
    words: dict[int, LastWords | None], signals: dict[int, int], began: float, *, sender: int
) -> Trial:
    said = {rank: one for rank, one in words.items() if one is not None}
    errors = [one for one in said.values() if one.error]
    named = re.compile(rf"(from|of|lost) rank {sender}\b|rank {sender} sent")
    trial = Trial(
        outcome="without effect",
        checked=sum(one.checked for one in said.values()),
        wrong=sum(one.wrong for one in said.values()),
        hung=sum(one is None and not signals[rank] for rank, one in words.items()),
    )
    if errors:
        trial.seconds = max(one.at for one in errors) - began
        if any("does not take part" in one.text for one in errors):
            trial.outcome = "end of patience"
        elif all(named.search(one.text) for one in errors):
            trial.outcome = "error that names the sender"
        else:
            trial.outcome = "error that names another rank"
    if any(signals.values()):
        trial.failure = f"ranks were ended by signals: {signals}"
    if trial.wrong or trial.hung:
        trial.failure = f"{trial.wrong} wrong means, {trial.hung} ranks hang: {words}"
    return trial
