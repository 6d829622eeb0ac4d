"""Quotes the trainings of docs/results.md where a claim has none of its own yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from reproduce.page import table

from .claim import NOT_YET, Json, Shown
from .wording import code, milliseconds, times

SEED_NOISE = 0.7  # percentage points between two seeds


def results(folder: Path) -> dict[str, Json]:
    """Returns the rows of docs/results.md by name; `folder` is docs/claims."""
    found = json.loads((folder.parent / "results" / "results.json").read_text())
    return {row["setting"]["name"]: row for row in found["rows"]}


def points(folder: Path, name: str) -> float:
    """Returns the accuracy of a setting minus that of fp32, in percentage points."""
    found: float = results(folder)[name]["points"]
    return found


def trained(folder: Path, *names: str) -> str:
    """Returns a table of the trainings, with the sentence that introduces it."""
    rows = results(folder)
    links = list(rows["fp32"]["links"])
    lines = []
    for row in (rows[name] for name in names if name in rows):
        fewer = rows["fp32"]["bytes_sent"] / row["bytes_sent"]
        steps = [row["links"][link] for link in links]
        lines.append(
            [
                code(row["setting"]["spec"]),
                f"{row['points']:+.1f} points",
                times(fewer),
                *(f"{milliseconds(at['step_seconds'])}, {times(at['speedup'])}" for at in steps),
            ]
        )
    header = ["spec", "vs fp32", "fewer bytes sent", *(f"step at {link}" for link in links)]
    return f"""
Trainings of `cifarnet`, 5 epochs, one seed ([results](results.md)):

{table(header, lines)}
"""


def untrained(figure: str, *names: str) -> Callable[[Json, Path], Shown]:
    """Returns the entry of a claim whose trainings are not made yet."""

    def show(found: Json, folder: Path) -> Shown:
        return Shown(NOT_YET, figure, trained(folder, *names) if names else "")

    return show
