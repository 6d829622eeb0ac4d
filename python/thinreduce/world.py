"""A run that goes on with more or fewer ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core
from .errors import BadState


def redistribute(states: Sequence[dict[str, Any]], world: int) -> list[dict[str, Any]]:
    """The :meth:`State.state_dict` of all ranks of a world, turned into those of another size.

    The residuals' sum over all ranks stays: old rank r's go to new rank r mod world, where those
    that meet are added; new ranks without any start with zeros. What all ranks hold alike is
    copied. A mean over fewer ranks makes the same sum weigh more, and over more ranks less.
    """
    if not states:
        raise BadState("states to redistribute: there are none")
    ordered = sorted(states, key=lambda state: state["rank"])
    for state in ordered:
        for key in ("format", "world", "rules", "settings", "step", "groups"):
            if state[key] != ordered[0][key]:
                raise BadState(
                    f"states to redistribute: '{key}' differs between ranks 0 and {state['rank']}"
                )
    engines = _core.redistribute([state["engine"] for state in ordered], world)
    return [
        {**ordered[0], "rank": rank, "world": world, "engine": engine}
        for rank, engine in enumerate(engines)
    ]
