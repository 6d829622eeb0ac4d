"""Connects the engines of all ranks of a torch process group."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _core
from .errors import BadInput


class StoreView:
    """The keys of a torch store under a prefix, with the three functions that the engine calls.

    torch's own ``wait`` blocks Ctrl-C, and a TCPStore that has timed out once no longer matches
    replies to requests. So a counter beside each key says whether the key is set, and ``wait``
    polls the counter.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        # torch's type hints say that values are str; the store takes and returns bytes.
        self._store: Any = dist.PrefixStore(prefix, store)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)
        self._store.add(f"{key}/set", 1)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(key)
        return value

    def wait(self, keys: list[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.001
        for key in keys:
            while self._store.add(f"{key}/set", 0) == 0:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no rank set '{key}' within {seconds:g} s")
                time.sleep(pause)
                pause = min(pause * 2, 0.05)


# Number of connections that each group of ranks has made. All its ranks hold the same number,
# because they connect in the same order.
_connections: dict[tuple[int, ...], int] = {}


def interface_from_environment() -> str:
    """Returns THINREDUCE_INTERFACE or the first interface of GLOO_SOCKET_IFNAME; "" if unset."""
    chosen = os.environ.get("THINREDUCE_INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "")
    return chosen.split(",")[0]


def members_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """Returns the global ranks of a process group; None is the default group."""
    if group is None or group is distributed_c10d._get_default_group():
        return tuple(range(dist.get_world_size()))
    return tuple(distributed_c10d.get_process_group_ranks(group))


def connect_group(
    group: dist.ProcessGroup | None, *, interface: str, timeout: float, link: str
) -> _core.Connection:
    """Connects this rank to all others of a process group; None is the default group."""
    if not dist.is_initialized():
        raise BadInput(
            "torch.distributed is not initialized; call torch.distributed.init_process_group() "
            "before the first step"
        )
    world = dist.get_world_size(group)
    rank = dist.get_rank(group)
    if rank < 0:
        raise BadInput(
            f"rank {dist.get_rank()} is not a member of the State's process_group; use this State "
            "only on the group's ranks"
        )
    members = members_of(group)
    number = _connections[members] = _connections.get(members, 0) + 1
    name = "-".join(map(str, members)) if len(members) < 32 else f"{hash(members):x}"
    store = StoreView(distributed_c10d._get_default_store(), f"thinreduce/{name}/{number}")
    where = _core.Where(
        rank=rank,
        world=world,
        # Only to choose the network; without it the engine takes the one of the default route.
        master_addr=os.environ.get("MASTER_ADDR", ""),
        master_port=int(os.environ.get("MASTER_PORT", "29500")),
        interface=interface or interface_from_environment(),
        timeout=timeout,
        link=link,
    )
    return _core.connect_through(where, store)
