"""Ctrl-C while the main thread waits inside torch.

DDP waits for the hook's futures in C++, where Python's signal handlers can't run. Python's own C
handler does run and writes to the wake-up descriptor; the State's thread reads it there and ends an
exchange that is stuck, so that the wait returns and KeyboardInterrupt can be raised.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import Optional


class InterruptWatch:
    """One for the process, as signals are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: Optional[socket.socket] = None
        self._writer: Optional[socket.socket] = None
        self._since: Optional[float] = None

    def install(self) -> None:
        """Does nothing outside the main thread, or when the program watches signals itself."""
        if self._reader or threading.current_thread() is not threading.main_thread():
            return
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if previous != -1:
            signal.set_wakeup_fd(previous)
            reader.close()
            writer.close()
            return
        self._reader, self._writer = reader, writer

    def _read(self) -> None:
        if self._reader is None:
            return
        try:
            if signal.SIGINT in self._reader.recv(256) and self._since is None:
                self._since = time.monotonic()
        except BlockingIOError:
            pass

    def forget(self) -> None:
        """The main thread runs Python again, so what came before was delivered."""
        with self._lock:
            self._read()
            self._since = None

    def seconds_ago(self) -> Optional[float]:
        """How long ago Ctrl-C was pressed, if it was."""
        with self._lock:
            self._read()
            return None if self._since is None else time.monotonic() - self._since


watch = InterruptWatch()
