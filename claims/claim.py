"""A claim of a paper: its commands, how it is measured, and the entry that the page has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bench import Bench
from .quoted import Quoted
from .trained import Trained
from .verdict import FAILS as FAILS
from .verdict import HOLDS as HOLDS
from .verdict import IN_PART as IN_PART
from .verdict import NOT_YET as NOT_YET

Json = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What an entry may use beside the claim's own measurements."""

    charts: Path  # folder for its charts
    trained: Trained
    quoted: Quoted


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
    """A row of the page. `show` gets the result of `measure`, which is empty if the row was not
    measured and has trainings."""

    name: str
    system: str
    claim: str  # a sentence without its full stop
    commands: tuple[str, ...]
    show: Callable[[Json, Context], Shown]
    measure: Callable[[Bench], Json] = field(default=measures_nothing)
    seconds: float = 0  # on two idle cores, for the estimate of the time left; 0: not measured
    trainings: tuple[str, ...] = ()  # settings of `make reproduce-long` that the verdict needs
    missing: tuple[str, ...] = ()  # commands of other trainings that the verdict still lacks
    rule: str = ""  # sentences: how the verdict follows from the figures
