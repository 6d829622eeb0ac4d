"""Keeps what a claim measured, with the date and the CPU.

Rows measured here are files in build/claims; those of the committed page are in
docs/claims/results.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from reproduce.page import cpu
from reproduce.runs import Json


@dataclass(frozen=True)
class Row:
    """The result of a claim's `measure`."""

    date: str  # ISO
    cpu: str  # with its cores
    found: Json


def row_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def keep(folder: Path, name: str, found: Json) -> None:
    """Writes a row; one with the same result keeps its date."""
    before = measured_here(folder, [name]).get(name)
    found = json.loads(json.dumps(found))  # as it is read back, with strings as keys
    if before is None or before.found != found:
        row = Row(date.today().isoformat(), f"{cpu()}, {os.cpu_count()} cores", found)
        row_file(folder, name).write_text(json.dumps(asdict(row), indent=1) + "\n")


def measured_here(folder: Path, names: list[str]) -> dict[str, Row]:
    """Returns the rows in build/claims; files of older versions, without a date, are skipped."""
    rows = {}
    for name in names:
        file = row_file(folder, name)
        fields = json.loads(file.read_text()) if file.exists() else {}
        if set(fields) == set(Row.__annotations__):
            rows[name] = Row(**fields)
    return rows


def committed(results: Path) -> dict[str, Row]:
    """Returns the rows of the page's results.json."""
    if not results.exists():
        return {}
    return {name: Row(**fields) for name, fields in json.loads(results.read_text()).items()}


def newest(committed: dict[str, Row], here: dict[str, Row]) -> dict[str, Row]:
    """Returns all rows; of two with the same name the later one, or `here` on the same day."""
    newer = {
        name: row
        for name, row in here.items()
        if name not in committed or row.date >= committed[name].date
    }
    return {**committed, **newer}
