"""The thread that waits for the engine and completes futures."""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, Optional

from . import _core
from ._interrupts import watch

# Between looks at the keyboard; a bucket that is done ends the wait at once.
_LOOK_SECONDS = 0.2
# What is under way may still finish after Ctrl-C, so that a handler can save a checkpoint.
_GRACE_SECONDS = 2.0

Report = dict[str, Any]
Done = Callable[[Optional[Report], Optional[BaseException]], None]


class Worker:
    """Waits for submitted buckets in order, without the GIL. Holds no reference to a State, so
    that one that is forgotten goes away."""

    def __init__(self, session: _core.Session) -> None:
        self._session = session
        self._queue: queue.SimpleQueue[Optional[tuple[_core.Pending, Done]]] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._under_way = 0
        self._thread = threading.Thread(target=self._run, name="thinreduce", daemon=True)
        self._thread.start()

    def add(self, pending: _core.Pending, done: Done) -> None:
        """Calls ``done`` on the worker's thread, with a report or an exception."""
        with self._idle:
            self._under_way += 1
        self._queue.put((pending, done))

    def drain(self) -> None:
        """Waits until nothing is under way."""
        with self._idle:
            self._idle.wait_for(lambda: self._under_way == 0)

    def close(self) -> None:
        """Finishes what is under way and leaves the other ranks."""
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
            except BaseException as caught:  # noqa: BLE001 - it is handed to whoever waits
                report, error = None, caught
            done(report, error)
            # The frame must not keep the last bucket's tensors until the next one comes.
            del item, pending, done, report, error
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()

    def _wait(self, pending: _core.Pending) -> Report:
        while not pending.wait(_LOOK_SECONDS):
            pressed = watch.seconds_ago()
            if pressed is not None and pressed > _GRACE_SECONDS:
                self._session.abandon("interrupted from the keyboard")
        return pending.get()
