"""Quotes the trainings of docs/results.md beside a claim's own."""

from __future__ import annotations

import json
from pathlib import Path

from reproduce.runs import Json
from reproduce.tables import table

from .wording import code, milliseconds, times


class Quoted:
    """The rows of docs/results.md, by name."""

    def __init__(self, rows: dict[str, Json]) -> None:
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> Quoted:
        rows = json.loads(path.read_text())["rows"]
        return cls({row["setting"]["name"]: row for row in rows})

    def speedups(self, name: str) -> dict[str, float]:
        """Returns by link how much faster a whole step is than with fp32."""
        return {link: at["speedup"] for link, at in self.rows[name]["links"].items()}

    def table(self, *names: str) -> str:
        """Returns a table of the trainings, with the sentence that introduces it."""
        fp32 = self.rows["fp32"]
        links = list(fp32["links"])
        lines = []
        for row in (self.rows[name] for name in names if name in self.rows):
            steps = [row["links"][link] for link in links]
            lines.append(
                [
                    code(row["setting"]["spec"]),
                    f"{row['points']:+.1f} points",
                    times(fp32["bytes_sent"] / row["bytes_sent"]),
                    *(
                        f"{milliseconds(at['step_seconds'])}, {times(at['speedup'])}"
                        for at in steps
                    ),
                ]
            )
        header = ["spec", "vs fp32", "fewer bytes sent", *(f"step at {link}" for link in links)]
        return f"""
Trainings of `cifarnet`, 5 epochs, one seed ([results](results.md)):

{table(header, lines)}
"""
