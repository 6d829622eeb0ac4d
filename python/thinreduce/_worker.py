"""The thread that waits for submitted buckets and completes their futures."""

from __future__ import annotations

import queue
import threading
import traceback
from typing import Any, Callable, Optional

from . import _core
from ._interrupts import watch

# Time between checks for Ctrl-C. A bucket that finishes ends the wait at once.
_POLL_SECONDS = 0.2
# Time that an exchange has to finish after Ctrl-C, so that a handler can save a checkpoint.
_GRACE_SECONDS = 2.0

Report = dict[str, Any]
Done = Callable[[Optional[Report], Optional[BaseException]], None]


class Worker:
    """Waits for submitted buckets in order, without holding the GIL.

    It holds no reference to the State, so that an unused State can be garbage-collected.
    """

    def __init__(self, session: _core.Session) -> None:
        self._session = session
        self._queue: queue.SimpleQueue[tuple[_core.Pending, Done] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._in_flight = 0
        self._thread = threading.Thread(target=self._run, name="thinreduce", daemon=True)
        self._thread.start()

    def add(self, pending: _core.Pending, done: Done) -> None:
        """Calls ``done`` with a report or an exception, on this thread, after the exchange.

        ``done`` must not raise: nobody would see the exception, and the thread must go on.
        """
        with self._idle:
            self._in_flight += 1
        self._queue.put((pending, done))

    def drain(self) -> None:
        """Waits until no bucket is in flight."""
        with self._idle:
            self._idle.wait_for(lambda: self._in_flight == 0)

    def close(self) -> None:
        """Finishes the buckets in flight and disconnects from the other ranks."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._session.close()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            pending, done = item
            try:
                report, error = self._wait(pending), None
            except BaseException as caught:  # handed to the waiting thread
                report, error = None, caught
            try:
                done(report, error)
            except BaseException:
                traceback.print_exc()
            # This frame must not keep the bucket's tensors alive while it waits for the next one.
            del item, pending, done, report, error
            with self._idle:
                self._in_flight -= 1
                self._idle.notify_all()

    def _wait(self, pending: _core.Pending) -> Report:
        while not pending.wait(_POLL_SECONDS):
            pressed = watch.seconds_ago()
            if pressed is not None and pressed > _GRACE_SECONDS:
                self._session.abandon("interrupted from the keyboard")
        return pending.get()
