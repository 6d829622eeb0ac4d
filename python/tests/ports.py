"""Ports for the tests of the Python package and for tests/chaos."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
import time
from pathlib import Path

# Below the ports of the C++ tests, which leave many of theirs in TIME_WAIT, and of the system.
PORTS = range(2048, 10000)
RESERVED = Path(tempfile.gettempdir()) / f"thinreduce-test-ports-{os.getuid()}"


def free_port() -> int:
    """Returns a port that nothing uses and that no other test gets.

    A rank binds it seconds later; until then a file reserves it, for an hour at most.
    """
    RESERVED.mkdir(exist_ok=True)
    while True:
        port = random.SystemRandom().choice(PORTS)
        reserved = RESERVED / str(port)
        try:
            reserved.touch(exist_ok=False)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - reserved.stat().st_mtime > 3600:
                    reserved.unlink()
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
