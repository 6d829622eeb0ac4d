"""Draws the charts of docs/claims.md with the look of those of docs/results.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt

from reproduce.plots import COLOURS, marker, save

Line = tuple[list[float], list[float]]


@dataclass
class Panel:
    """One chart: lines by name."""

    title: str
    x: str
    y: str
    lines: dict[str, Line] = field(default_factory=dict)
    x_scale: str = "linear"
    y_scale: str = "linear"

    def add(self, name: str, x: float, y: float) -> None:
        """Adds a point to a line."""
        xs, ys = self.lines.setdefault(name, ([], []))
        xs.append(x)
        ys.append(y)


def draw(path: Path, *panels: Panel) -> None:
    """Draws panels side by side. "fft, detail" has the colour of fft; "fft (detail)" is dashed."""
    figure, charts = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 4), squeeze=False)
    for chart, panel in zip(charts[0], panels):
        for name, (xs, ys) in panel.lines.items():
            method = name.split(",")[0].split(" ")[0].split(":")[0]
            known = method in COLOURS
            chart.plot(
                xs,
                ys,
                color=COLOURS[method] if known else None,
                marker=marker(method) if known else "o",
                markersize=4,
                linestyle="--" if "(" in name else "-",
                label=name,
            )
        chart.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        chart.set(xscale=panel.x_scale, yscale=panel.y_scale)
        chart.legend(fontsize=7)
    save(figure, path)
