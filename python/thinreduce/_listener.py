"""The addresses at which ranks without a process group listen, so that PyTorch does not listen on
interfaces that nobody needs. The engine over Gloo has the same rules."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from .errors import Unavailable

_LOCALHOST = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _means_this_machine(host: str) -> bool:
    """Whether a loopback address is what the user asked for. A machine's own name may stand for one
    there, too, which is of no use to others."""
    return _is_number(host) or host in _LOCALHOST or host.endswith(".localhost")


def _resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    """Returns families and addresses; none if the name is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def _is_own(family: int, address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind(address)
        return True
    return False


def _place_of(host: str) -> tuple[int, str] | None:
    """Returns the address of this machine that a name stands for; None if there may be several."""
    own = [(family, one[0]) for family, one in _resolve(host, 0) if _is_own(family, one)]
    if own and _means_this_machine(host):
        return own[0]
    if len(own) == 1 and not ipaddress.ip_address(own[0][1].partition("%")[0]).is_loopback:
        return own[0]
    return None


def listen_for_ranks(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at ``host`` alone if that is one address of this machine, and
    on all interfaces otherwise."""
    place = _place_of(host)
    try:
        if place is not None:
            return socket.create_server((place[1], port), family=place[0], backlog=socket.SOMAXCONN)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port),
                family=socket.AF_INET6,
                backlog=socket.SOMAXCONN,
                dualstack_ipv6=True,
            )
        return socket.create_server(("", port), backlog=socket.SOMAXCONN)
    except OSError as error:
        raise Unavailable(
            f"rank 0: can't listen on port {port}: {error.strerror}; choose another MASTER_PORT"
        ) from None


def address_towards(host: str) -> str | None:
    """Returns the address from which this machine reaches ``host``; None if it does not show at
    which one other machines reach this one."""
    for family, address in _resolve(host, 9):
        # Connecting a UDP socket sends nothing.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            here: str = probe.getsockname()[0]
            loopback = ipaddress.ip_address(here.partition("%")[0]).is_loopback
            if not loopback or _means_this_machine(host):
                return here
    return None
