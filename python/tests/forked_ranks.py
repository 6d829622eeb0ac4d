"""Ranks that are forked from one process which has imported torch. To import it takes a second or
two per rank, longer than most tests.

That process has one thread and no connection, so a forked rank differs from a new Python in two
points: all ranks hash strings alike, and nothing is torn down after the functions of atexit.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

import pytest

_server = multiprocessing.get_context("forkserver")
# PyTorch 2 imports the last when an optimizer steps; PyTorch 1.13 has none.
_server.set_forkserver_preload(
    ["torch.nn.parallel", "thinreduce.ddp", "thinreduce.local_steps", "torch._dynamo"]
)


def _run(
    script: str,
    args: Sequence[str],
    environment: Mapping[str, str],
    out: Connection,
    err: Connection,
) -> None:
    """Runs a script in a forked process, as a new Python would."""
    for end, number in ((out, 1), (err, 2)):
        os.dup2(end.fileno(), number)
        end.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def _start_server() -> None:
    """Starts the process that forks ranks, if it does not run yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # which libraries read when they are loaded
        multiprocessing.forkserver.ensure_running()


class ForkedRank:
    """A forked rank, with as much of subprocess.Popen as the tests use."""

    def __init__(self, script: Path, args: Sequence[str], environment: Mapping[str, str]) -> None:
        _start_server()
        self.stdout, out = self._pipe()
        self.stderr, err = self._pipe()
        given = (str(script), args, dict(environment), out, err)
        self._process = _server.Process(target=_run, args=given)
        self._process.start()
        out.close()
        err.close()
        self._reading: list[Future[str]] = []

    @staticmethod
    def _pipe() -> tuple[TextIO, Connection]:
        ours, theirs = _server.Pipe(duplex=False)
        with ours:
            return os.fdopen(os.dup(ours.fileno())), theirs

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what the rank prints until its end, and the errors."""
        if not self._reading:
            with_threads = ThreadPoolExecutor(2)
            self._reading = [with_threads.submit(one.read) for one in (self.stdout, self.stderr)]
            with_threads.shutdown(wait=False)
        if wait(self._reading, timeout).not_done:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        self._process.join()
        out, err = (one.result() for one in self._reading)
        return out, err
