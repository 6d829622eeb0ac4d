"""Lets a saved run continue with more or fewer ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core
from ._arguments import MAX_RANKS, check_saved_state, shown, whole_number
from .errors import BadInput, BadState

# The keys of State.state_dict(), and those that are the same on all ranks.
_COMPARED = ("format", "world", "rules", "settings", "step", "groups")
STATE_KEYS = (*_COMPARED, "rank", "warm_up_buckets", "named", "engine")


def redistribute(states: Sequence[dict[str, Any]], world: int) -> list[dict[str, Any]]:
    """Turns the :meth:`State.state_dict` of all old ranks into one per rank of a new world.

    ``world`` is the new number of ranks. The sum of the residuals over all ranks does not change:
    those of old rank r go to new rank r mod world and are added to others that go there; new ranks
    that get none start with zeros. State that is equal on all ranks is copied. The mean divides the
    same sum of residuals by the new number of ranks.
    """
    world = whole_number("world", world, min=1, max=MAX_RANKS)
    if not isinstance(states, Sequence):
        raise BadInput(
            "redistribute() needs a list with the state_dict of every old rank; it got "
            f"{shown(states)}"
        )
    if not states:
        raise BadState("redistribute() needs the state_dict of every old rank; the list is empty")
    for state in states:
        check_saved_state(state, "State", None, STATE_KEYS)
    ordered = sorted(states, key=lambda state: state["rank"])
    for state in ordered:
        for key in _COMPARED:
            if state[key] != ordered[0][key]:
                raise BadState(
                    f"redistribute() needs states of one run and step: '{key}' is "
                    f"{ordered[0][key]} on rank {ordered[0]['rank']} and {state[key]} on rank "
                    f"{state['rank']}"
                )
    engines = _core.redistribute([state["engine"] for state in ordered], world)
    return [
        {**ordered[0], "rank": rank, "world": world, "engine": engine}
        for rank, engine in enumerate(engines)
    ]
