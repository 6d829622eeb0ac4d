"""Draws the charts of docs/peers.md, with the look of those of docs/results.md."""

from __future__ import annotations

from pathlib import Path

from claims.charts import Panel, draw
from reproduce.plots import split_steps

from . import contenders as plan
from .contenders import BF16, DDP, OURS
from .figures import Figures, Row

SHOWN = 5  # contenders of ours, and of others, in a chart over time


def label(row: Row) -> str:
    """Returns a name from which `draw` takes our methods' colours, and dashes for the others."""
    name = row.contender.name
    if row.contender.group == OURS:
        return f"{name.removeprefix('thinreduce ')}, thinreduce"
    return f"{name} ({row.contender.group})"


def shown(figures: Figures, link: str) -> list[Row]:
    """Returns the rows of a chart: DDP, bf16, and the fastest of ours and of the others."""
    timed = [row for row in figures.rows if link in row.links and row.curves]
    ranked = [row for _, row in figures.ranking(link)]
    order = [*ranked, *(row for row in timed if row not in ranked)]
    ours = [row for row in order if row.contender.group == OURS][:SHOWN]
    others = [row for row in order if row.contender.group != OURS][:SHOWN]
    always = [row for row in timed if row.contender in (DDP, BF16)]
    return [*always, *(row for row in (*others, *ours) if row not in always)]


def panel(figures: Figures, link: str) -> Panel:
    lines = {}
    for row in shown(figures, link):
        curve = next(iter(row.curves.values()))[1:]
        seconds = [step * row.links[link].step for step, _ in curve]
        lines[label(row)] = (seconds, [loss for _, loss in curve])
    while_busy = "; other programs ran, so the times are too long" if figures.busy(link) else ""
    return Panel(
        f"link {link}{while_busy}", "seconds of training", "loss on held-out data", lines, "log"
    )


def write(folder: Path, figures: Figures) -> list[str]:
    """Returns the names of the charts that the results suffice for."""
    links = [link for link in plan.LINKS if any(link in row.links for row in figures.rows)]
    written = []
    for link in links:
        one = panel(figures, link)
        if one.lines:
            written.append(f"{figures.workload}-loss-{link}.svg")
            draw(folder / written[-1], one)
    rows = [row for row in figures.rows if all(link in row.links for link in links)]
    if rows and figures.compute:
        compute = 1e3 * figures.compute
        panels = {
            link: (
                [min(compute, 1e3 * row.links[link].step) for row in rows],
                [max(0.0, 1e3 * row.links[link].step - compute) for row in rows],
            )
            for link in links
        }
        written.append(f"{figures.workload}-steps.svg")
        split_steps(folder / written[-1], [row.contender.name for row in rows], panels)
    return written
