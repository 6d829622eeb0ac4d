"""The verdicts, and how those on the parts of a claim make one."""

from __future__ import annotations

from collections.abc import Iterable

HOLDS, IN_PART, FAILS, NOT_YET = "holds", "holds in part", "does not hold", "not shown yet"


def worst(parts: Iterable[str]) -> str:
    """Returns the verdict on one training of which several things are claimed."""
    return max(parts, key=(HOLDS, IN_PART, NOT_YET, FAILS).index)


def every(parts: Iterable[str]) -> str:
    """Returns the verdict on a claim of several parts: "in part" if some of them hold."""
    parts = tuple(parts)
    known = {part for part in parts if part != NOT_YET}
    if not known:
        return NOT_YET
    if known == {FAILS}:
        return FAILS
    return HOLDS if set(parts) == {HOLDS} else IN_PART


def some(parts: Iterable[str]) -> str:
    """Returns the verdict on a claim that one training can show, and only all can refute."""
    return min(parts, key=(HOLDS, IN_PART, NOT_YET, FAILS).index)
