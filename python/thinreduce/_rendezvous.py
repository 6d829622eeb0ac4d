"""Connects the engines of all ranks of a torch process group."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _core
from ._agreement import agree
from ._arguments import check_secret, check_text, check_type, seconds
from ._new_world import name_of_meeting
from ._store import StoreView
from ._time_limit import TimeLimit
from ._torch_messages import Messages
from .errors import BadInput

# Number of connections that each group of ranks has made. All its ranks hold the same number,
# because they connect in the same order.
_connections: dict[tuple[int, ...], int] = {}

# The setting of PyTorch when this module was imported.
_DEVICE_TRANSPORT = os.environ.get("GLOO_DEVICE_TRANSPORT", "")


def interface_from_environment() -> str:
    """Returns THINREDUCE_INTERFACE or the first interface of GLOO_SOCKET_IFNAME; "" if unset."""
    chosen = os.environ.get("THINREDUCE_INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "")
    return chosen.split(",")[0]


def members_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """Returns the global ranks of a process group; None is the default group."""
    if group is None or group is distributed_c10d._get_default_group():
        return tuple(range(dist.get_world_size()))
    return tuple(distributed_c10d.get_process_group_ranks(group))


def check_group(group: Any) -> None:
    """Raises BadInput unless ``group`` is a process group or None. connect() refuses the group of
    other ranks only, which new_group() returns as a number or an object."""
    if group is None or group is distributed_c10d.GroupMember.NON_GROUP_MEMBER:
        return
    check_type("process_group", group, dist.ProcessGroup, "a torch.distributed.ProcessGroup")


def refuse_unless_group_is_clear() -> None:
    """Raises BadInput if this rank is in a process group of some ranks only: a DDP model that
    nobody has named may be of that group, and DDP does not tell its hook."""
    if not dist.is_initialized():
        return  # _connect_group() explains
    world = members_of(None)
    known: dict[Any, dict[int, int]] = distributed_c10d._pg_group_ranks
    for ranks in list(known.values()):
        if dist.get_rank() in ranks and tuple(sorted(ranks)) != world:
            raise BadInput(
                f"this rank is in a process group of the ranks {tuple(sorted(ranks))} beside the "
                f"default one of {len(world)} ranks, and DDP does not tell its hook which one the "
                "model uses: give the State model=, or process_group= "
                "(torch.distributed.group.WORLD is the default one)"
            )


def choose_transport(given: str) -> str:
    """Returns "gloo" or "torch". The engine's own connections are not encrypted, so "auto" takes
    those of PyTorch when it is told to encrypt, or to use anything else than plain TCP."""
    if given != "auto":
        return given
    # PyTorch reads the variable once, so a value that is gone by now may still hold.
    values = (_DEVICE_TRANSPORT, os.environ.get("GLOO_DEVICE_TRANSPORT", ""))
    plain = all(value in ("", "TCP") for value in values)
    return "gloo" if plain and _core.have_gloo() else "torch"


def _gloo_devices(group: dist.ProcessGroup | None) -> list[Any] | None:
    """Returns the devices of a group over Gloo; None if it has none on the CPU."""
    backend: Any = group or distributed_c10d._get_default_group()
    if hasattr(backend, "_get_backend"):  # torch 2: a group has a backend per kind of device
        try:
            backend = backend._get_backend(torch.device("cpu"))
        except RuntimeError:
            return None
    gloo: Any = dist.ProcessGroupGloo  # torch's type hints lack its options
    return list(backend.options._devices) if isinstance(backend, gloo) else None


class GroupArguments:
    """The arguments that say how a process group connects, which State and LocalSteps share,
    checked."""

    def __init__(
        self,
        *,
        link: str,
        transport: str,
        interface: str,
        connect_timeout: float,
        secret: str | None,
    ) -> None:
        if transport not in ("auto", "gloo", "torch"):
            raise BadInput(f"transport must be 'auto', 'gloo' or 'torch'; it is {transport!r}")
        self._link = check_text("link", link)
        if link:
            _core.check_link(link)
        self._transport = transport
        self._interface = check_text("interface", interface)
        self._timeout = seconds("connect_timeout", connect_timeout)
        self._secret = secret
        check_secret(secret)
        _core.has_secret(secret)  # raises BadInput unless it may be one

    def connect(
        self, group: dist.ProcessGroup | None, *, new_world: bool = False
    ) -> _core.Connection:
        """Connects this rank to all others of a process group; None is the default group."""
        return _connect_group(
            group,
            new_world=new_world,
            transport=self._transport,
            interface=self._interface,
            timeout=self._timeout,
            link=self._link,
            secret=self._secret,
        )


def _connect_group(
    group: dist.ProcessGroup | None,
    *,
    new_world: bool,
    transport: str,
    interface: str,
    timeout: float,
    link: str,
    secret: str | None,
) -> _core.Connection:
    # The secret is that of the environment if it is None, and there is none if it is "".
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
    limit = TimeLimit(timeout)  # all stages of connecting share it
    members = members_of(group)
    name = "-".join(map(str, members)) if len(members) < 32 else f"{hash(members):x}"
    # torchrun starts failed ranks again with the same store, which still has the old keys.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"thinreduce/{attempt}/{name}"
    whole_store = distributed_c10d._get_default_store()
    if new_world:
        prefix += "/" + name_of_meeting(StoreView(whole_store, prefix), rank, world, limit)
    else:
        number = _connections[members] = _connections.get(members, 0) + 1
        prefix += f"/{number}"
    store = StoreView(whole_store, prefix)
    transport = choose_transport(transport)
    agree(store, rank, world, transport=transport, secret=_core.has_secret(secret), limit=limit)
    if transport == "torch":
        messages = Messages(
            store,
            rank,
            world,
            timeout=limit.left(),
            interface=interface or os.environ.get("THINREDUCE_INTERFACE", ""),
            devices=_gloo_devices(group),
        )
        return _core.connect_torch(messages, link=link, timeout=limit.left(), secret=secret)
    where = _core.Where(
        rank=rank,
        world=world,
        # Only to choose the network; without it the engine takes the one of the default route.
        master_addr=os.environ.get("MASTER_ADDR", ""),
        master_port=int(os.environ.get("MASTER_PORT", "29500")),
        interface=interface or interface_from_environment(),
        timeout=limit.left(),
        link=link,
        secret=secret,
    )
    return _core.connect_through(where, store)
