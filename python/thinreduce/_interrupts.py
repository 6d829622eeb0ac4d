"""Notices Ctrl-C while the main thread waits inside torch.

DDP waits for the hook's futures in C++, where Python's signal handlers can't run. Python's C-level
handler still writes the signal's number to the wake-up file descriptor. The State's thread reads it
there and ends an exchange that is stuck, so that the wait returns and Python can raise
KeyboardInterrupt.
"""

from __future__ import annotations

import atexit
import signal
import socket
import threading
import time


class InterruptWatch:
    """Remembers when Ctrl-C was pressed. There is one per process, because signals are too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: socket.socket | None = None
        self._writer: socket.socket | None = None
        self._since: float | None = None

    def install(self) -> None:
        """Starts watching.

        Does nothing outside the main thread, or when the program has set a wake-up file descriptor
        of its own.
        """
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
        atexit.register(self._close)

    def _close(self) -> None:
        """Stops watching when the program ends."""
        with self._lock:
            reader, writer = self._reader, self._writer
            self._reader = self._writer = None
        if reader is None or writer is None:
            return
        if (current := signal.set_wakeup_fd(-1)) != writer.fileno():
            signal.set_wakeup_fd(current)  # another program's, set after ours
        reader.close()
        writer.close()

    def _read(self) -> None:
        if self._reader is None:
            return
        try:
            if signal.SIGINT in self._reader.recv(256) and self._since is None:
                self._since = time.monotonic()
        except BlockingIOError:
            pass

    def forget(self) -> None:
        """Drops earlier signals; call it on the main thread, which has handled them by then."""
        with self._lock:
            self._read()
            self._since = None

    def seconds_ago(self) -> float | None:
        """Returns the seconds since Ctrl-C was pressed, or None if it was not."""
        with self._lock:
            self._read()
            return None if self._since is None else time.monotonic() - self._since


watch = InterruptWatch()
