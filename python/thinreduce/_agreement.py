"""Compares versions and transports of all ranks before they connect."""

from __future__ import annotations

import contextlib

from ._core import version
from ._store import StoreView
from ._time_limit import TimeLimit
from .errors import Error, Mismatch, Timeout

# Time for the verdict of rank 0 to arrive, beyond the time that rank 0 waits for all ranks.
_SECONDS_FOR_VERDICT = 10.0
_SECONDS_TO_HEAR = 2.0


def _ranks(numbers: list[int]) -> str:
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {', '.join(map(str, numbers))}"


def no_rank_0(rank: int, limit: TimeLimit) -> Timeout:
    """Returns the error of a rank that hears nothing from rank 0."""
    return Timeout(
        f"rank {rank}: rank 0 did not connect within {limit.total:g} s; start all ranks, or raise "
        "connect_timeout"
    )


def _difference(values: list[str]) -> str:
    """Returns which ranks have which value; "" if all have the same."""
    if len(set(values)) == 1:
        return ""
    return "; ".join(
        f"{value} on {_ranks([rank for rank, one in enumerate(values) if one == value])}"
        for value in sorted(set(values))
    )


def _judge(store: StoreView, world: int, limit: TimeLimit) -> Error | None:
    """Returns the error of all ranks, which rank 0 finds."""
    missing = []
    for peer in range(1, world):
        try:
            store.wait([f"about/{peer}"], limit.left())
        except TimeoutError:
            missing.append(peer)
    if missing:
        return Timeout(
            f"{_ranks(missing)} did not connect within {limit.total:g} s; start all {world} ranks, "
            "or raise connect_timeout"
        )
    # Version, transport and, if the rank has one, the word "secret".
    abouts = [store.get(f"about/{peer}").decode().split(" ") for peer in range(world)]
    if different := _difference([one[0] for one in abouts]):
        return Mismatch(
            f"the ranks have different versions of thinreduce: {different}; install the same one "
            "on all ranks"
        )
    if different := _difference([one[1] for one in abouts]):
        return Mismatch(
            f"the ranks use different transports: {different}; give all ranks the same "
            "transport=, package and GLOO_DEVICE_TRANSPORT"
        )
    if different := _difference(["a secret" if one[2:] else "no secret" for one in abouts]):
        return Mismatch(
            f"not all ranks have a secret: {different}; give all ranks the same THINREDUCE_SECRET, "
            "THINREDUCE_SECRET_FILE or secret=, or none of them"
        )
    return None


def agree(
    store: StoreView, rank: int, world: int, *, transport: str, secret: bool, limit: TimeLimit
) -> None:
    """Waits for all ranks. Raises the same Timeout or Mismatch on all that are there if some are
    missing, if versions or transports differ, or if only some have a ``secret``."""
    about = f"{version()} {transport}" + (" secret" if secret else "")
    store.set(f"about/{rank}", about.encode())
    if rank == 0:
        error = _judge(store, world, limit)
        store.set("verdict", f"{error.code}\n{error}".encode() if error else b"agreed")
        if error is not None:
            # The store may end with this process.
            for peer in range(1, world):
                with contextlib.suppress(TimeoutError):
                    store.wait(
                        [f"heard/{peer}"], _SECONDS_TO_HEAR if store.has(f"about/{peer}") else 0
                    )
            raise error
        return
    try:
        store.wait(["verdict"], limit.left() + _SECONDS_FOR_VERDICT)
    except TimeoutError:
        raise no_rank_0(rank, limit) from None
    code, _, text = store.get("verdict").decode().partition("\n")
    if code != "agreed":
        store.set(f"heard/{rank}", b"")
        raise (Timeout if code == Timeout.code else Mismatch)(text)
