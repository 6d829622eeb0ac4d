"""The results as a table, and as a part of a page."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from trial import Trial

_BEGIN = "<!-- chaos: written by make chaos -->\n"
_END = "<!-- end of chaos -->\n"
_HEAD = [
    "| fault | trials | outcome | means checked | wrong | hangs | time: p50 | p95 | max |",
    "|---|---|---|---|---|---|---|---|---|",
]


def _percentile(ordered: list[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def row(name: str, title: str, trials: list[Trial]) -> dict[str, Any]:
    """Returns the figures of a scenario."""
    seconds = sorted(trial.seconds for trial in trials if trial.seconds is not None)
    return {
        "name": name,
        "title": title,
        "trials": len(trials),
        "outcomes": dict(Counter(trial.outcome for trial in trials).most_common()),
        "failed": sum(bool(trial.failure) for trial in trials),
        "checked": sum(trial.checked for trial in trials),
        "wrong": sum(trial.wrong for trial in trials),
        "hung": sum(trial.hung for trial in trials),
        "seconds": {
            "p50": _percentile(seconds, 0.5),
            "p95": _percentile(seconds, 0.95),
            "max": seconds[-1],
        }
        if seconds
        else None,
    }


def _outcome(row: dict[str, Any]) -> str:
    words = [f"{count} {outcome}" for outcome, count in row["outcomes"].items()]
    if len(words) == 1 and row["trials"] == 1:
        words = list(row["outcomes"])
    if row["failed"]:
        words.append(f"**{row['failed']} failed**")
    return ", ".join(words)


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = list(_HEAD)
    for one in rows:
        times = one["seconds"] or {}
        cells = [one["title"], one["trials"], _outcome(one), f"{one['checked']:,}"]
        cells += [one["wrong"], one["hung"]]
        cells += [f"{times[key]:.2f} s" if key in times else "" for key in ("p50", "p95", "max")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Replaces the table of a page, and writes its figures beside it: PAGE/chaos.json."""
    before, begin, rest = file.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{file} has no lines '{_BEGIN.strip()}' and '{_END.strip()}'")
    file.write_text(f"{before}{begin}\n" + "\n".join(table(rows)) + f"\n\n{end}{after}")
    figures = file.with_suffix("") / "chaos.json"
    figures.parent.mkdir(exist_ok=True)
    figures.write_text(json.dumps(rows, indent=1) + "\n")
