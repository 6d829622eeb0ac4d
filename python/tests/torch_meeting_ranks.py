"""A rank that connects without a process group, over PyTorch, and prints where it listens.
test_meeting.py starts it."""

from __future__ import annotations

import os
import sys

import numpy as np
from thinreduce._torch_messages import connect_at

from thinreduce import _core

LISTENS = "0A"  # a state of /proc/net/tcp


def listening() -> list[tuple[str, int]]:
    """Returns the addresses, in hexadecimal, and ports at which this process listens."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                words = line.split()
                if words[3] == LISTENS and f"socket:[{words[9]}]" in own:
                    address, port = words[1].split(":")
                    found.append((address, int(port, 16)))
    return found


host = sys.argv[1]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = int(os.environ["MASTER_PORT"])
connection = connect_at(rank, world, (host, port), interface="", timeout=120, link="", secret=None)
session = _core.Session(connection, _core.SessionOptions())
values = np.full(5000, rank, dtype=np.float32)
layout = _core.Layout(id=0, elements=5000, tensors=[], spec="fp32", name="")
session.submit(session.add_bucket(layout), values.ctypes.data).get()
assert (values == (world - 1) / 2).all()
print("listens", listening(), flush=True)
session.close()
