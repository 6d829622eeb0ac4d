"""A claim of a paper: its commands, how it is measured, and the entry that the page has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bench import Bench

Json = dict[str, Any]

HOLDS, IN_PART, FAILS, NOT_YET = "holds", "holds in part", "does not hold", "not shown yet"


@dataclass(frozen=True)
class Shown:
    """The page's entry for a claim."""

    verdict: str
    figure: str  # for the table
    text: str = ""  # for the claim's own section
    charts: tuple[str, ...] = ()


def measures_nothing(bench: Bench) -> Json:
    return {}


@dataclass(frozen=True)
class Claim:
    """A row of the page. `show` gets the result of `measure` and the folder for its charts."""

    name: str
    system: str
    claim: str  # a sentence without its full stop
    commands: tuple[str, ...]
    show: Callable[[Json, Path], Shown]
    measure: Callable[[Bench], Json] = field(default=measures_nothing)
    seconds: float = 0  # on two idle cores, for the estimate of the time left; 0: not measured
    missing: tuple[str, ...] = ()  # trainings that the verdict still lacks
    rule: str = ""  # sentences: how the verdict follows from the figures
