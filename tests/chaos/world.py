"""A world of ranks as forked processes, and what each of them says in the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "tests"))

from ports import free_port as free_port  # the scenarios import it from here

# Ranks are forked, because a new Python would import everything again, a second per rank.
_fork = multiprocessing.get_context("fork")

# Seconds after which a rank that has said nothing hangs. Long, because a machine may be busy.
HANG = 60.0


@dataclass
class LastWords:
    """The report of a rank that ends."""

    error: str = ""  # the name of the exception's class; "": the rank is done
    text: str = ""  # of the exception
    at: float = 0.0  # time.monotonic(), which all processes share
    checked: int = 0  # means that were compared with the oracle
    wrong: int = 0  # of them, those with other bits

    @contextlib.contextmanager
    def of_error(self) -> Iterator[None]:
        """Notes an exception and its time before anything is closed."""
        try:
            yield
        except Exception as error:
            if self.error:  # noted inside
                raise
            self.at = time.monotonic()
            self.error, self.text = type(error).__name__, str(error)
            raise


# The work of a rank. It calls `running()` when faults may begin, and counts its means in `words`.
Body = Callable[[int, LastWords, Callable[[], None]], None]


def _run(body: Body, rank: int, pipe: Connection) -> None:
    os.setsid()  # so that the workers of a DataLoader can be ended with their rank
    words = LastWords()
    with contextlib.suppress(Exception), words.of_error():
        body(rank, words, lambda: pipe.send("running"))
    pipe.send(words)


class World:
    """Starts `body` on all ranks, and kills what is left of them at the end of a `with`."""

    def __init__(self, size: int, body: Body) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(size):
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=_run, args=(body, rank, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # it may not have called setsid() yet
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def wait_until_running(self) -> None:
        for rank, pipe in enumerate(self._pipes):
            said = pipe.recv() if pipe.poll(HANG) else None
            if said != "running":
                raise RuntimeError(f"rank {rank} did not start: {said}")

    def signal(self, rank: int, number: int) -> float:
        """Sends a signal to a rank; returns when."""
        os.kill(self._processes[rank].pid, number)
        return time.monotonic()

    def last_words(
        self, ranks: Iterable[int], *, limit: float = HANG
    ) -> dict[int, LastWords | None]:
        """Returns what the ranks say in the end, after they have ended; None for one that says
        nothing: it hangs, or a signal has ended it (:meth:`ended_by`)."""
        ranks = list(ranks)
        until = time.monotonic() + limit
        words: dict[int, LastWords | None] = {}
        for rank in ranks:
            words[rank] = None
            with contextlib.suppress(EOFError):
                while words[rank] is None:
                    if not self._pipes[rank].poll(max(0.0, until - time.monotonic())):
                        break
                    said = self._pipes[rank].recv()
                    words[rank] = said if isinstance(said, LastWords) else None
        for rank in ranks:
            self._processes[rank].join(max(0.1, until - time.monotonic()))
            if self._processes[rank].is_alive():
                words[rank] = None
        return words

    def ended_by(self, rank: int) -> int:
        """Returns the number of the signal that has ended a rank, or 0."""
        code = self._processes[rank].exitcode
        return -code if code is not None and code < 0 else 0
