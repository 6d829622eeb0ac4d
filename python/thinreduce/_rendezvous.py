"""How the ranks of a torch process group open connections of their own."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Optional

import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _core
from .errors import BadInput


class StoreView:
    """A torch store under a prefix, as the engine wants it: set, get, and wait with a deadline.

    torch's own wait blocks Ctrl-C, and a TCPStore that timed out once is out of step with its
    server afterwards. So a counter beside each key tells that it is there, and wait asks for it.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = dist.PrefixStore(prefix, store)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)
        self._store.add(f"{key}/there", 1)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, keys: list[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.001
        for key in keys:
            while self._store.add(f"{key}/there", 0) == 0:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"'{key}' was not set within {seconds:g} s")
                time.sleep(pause)
                pause = min(pause * 2, 0.05)


# How often each group of ranks has connected: all of them count alike.
_connections: dict[tuple[int, ...], int] = {}


def interface_from_environment() -> str:
    """THINREDUCE_INTERFACE, or the first one that torch's Gloo is told to use."""
    chosen = os.environ.get("THINREDUCE_INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "")
    return chosen.split(",")[0]


def connect_group(
    group: Optional[Any], *, interface: str, timeout: float, link: str
) -> _core.Connection:
    """Connects the ranks of a process group (None: the default one) to one another."""
    if not dist.is_initialized():
        raise BadInput("call torch.distributed.init_process_group before the first step")
    world = dist.get_world_size(group)
    rank = dist.get_rank(group)
    if rank < 0:
        raise BadInput("this rank is not in the process group that the State was given")
    if group is None or group is distributed_c10d._get_default_group():
        members = tuple(range(world))
    else:
        members = tuple(distributed_c10d.get_process_group_ranks(group))
    number = _connections[members] = _connections.get(members, 0) + 1
    name = "-".join(map(str, members)) if len(members) < 32 else f"{hash(members):x}"
    store = StoreView(distributed_c10d._get_default_store(), f"thinreduce/{name}/{number}")
    where = _core.Where(
        rank=rank,
        world=world,
        master_addr=os.environ.get("MASTER_ADDR") or socket.gethostname(),
        master_port=int(os.environ.get("MASTER_PORT", "29500")),
        interface=interface or interface_from_environment(),
        timeout=timeout,
        link=link,
    )
    return _core.connect_through(where, store)
