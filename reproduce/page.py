"""Writes docs/results.md and the charts beside it."""

from __future__ import annotations

import json
import os
import platform
import textwrap
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from . import settings as plan
from .headlines import Headline, Target
from .measures import LEVEL, Row
from .runs import Json
from .tables import table as table


def wrapped(text: str) -> str:
    """Breaks a paragraph into lines of at most 160 columns, the width of the pages."""
    return textwrap.fill(text, 160, break_long_words=False, break_on_hyphens=False)


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def seconds(value: float | None) -> str:
    if value is None:
        return "not reached"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def results_table(rows: list[Row]) -> str:
    header = ["setting", "accuracy", "vs fp32", "fewer bytes sent", "sent per step", "payload"]
    for link in plan.LINKS:
        header += [f"step at {link}", "faster", f"to {100 * LEVEL:.0f} % of fp32"]
    lines = []
    for row in rows:
        line = [
            row.setting.name,
            f"{100 * row.accuracy:.2f} %",
            "" if row.setting.spec == "fp32" else f"{row.points:+.2f}",
            f"{row.fewer:.1f}x",
            f"{row.bytes_sent / 1e3:,.0f} kB",
            f"1/{row.ratio:.1f}",
        ]
        for link in plan.LINKS:
            here = row.links[link]
            line += [
                f"{1e3 * here.step_seconds:.0f} ms",
                f"{here.speedup:.1f}x",
                seconds(here.level_seconds),
            ]
        lines.append(line)
    return table(header, lines)


# The rows of the README's table, all trained with SGD: the results page has the rest.
README_ROWS = ("fp32", "dqsg", "fft", "ndqsg", "gradiveq", "powersgd")


def short_table(rows: list[Row]) -> str:
    """The README's table."""
    header = [
        "method",
        "accuracy",
        "vs fp32",
        "fewer bytes sent",
        *(f"step at {link}" for link in plan.LINKS),
    ]
    by_name = {row.setting.name: row for row in rows}
    lines = []
    for row in (by_name[name] for name in README_ROWS if name in by_name):
        line = [f"`{row.setting.spec}`"]
        line += [
            f"{100 * row.accuracy:.1f} %",
            "" if row.setting.spec == "fp32" else f"{row.points:+.1f}",
            f"{row.fewer:.1f}x",
        ]
        for link in plan.LINKS:
            here = row.links[link]
            line.append(f"{1e3 * here.step_seconds:.0f} ms, {here.speedup:.1f}x")
        lines.append(line)
    return table(header, lines)


def update_between(page: Path, name: str, target: str, text: str) -> None:
    """Puts text between the two markers of a page that name a part of it."""
    begin, end = f"<!-- {name}: written by make {target} -->\n", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(begin)
    after = rest.split(end)[1]
    page.write_text(before + begin + "\n" + text + "\n\n" + end + after)


def nested_text(rows: list[Row]) -> str:
    """Says how much of ndqsg was nested."""
    return "".join(
        f"`{row.setting.name}`: {100 * row.nested:.1f} % of the nested ranks' elements had nested codes, the others plain ones.\n"
        for row in rows
        if row.nested is not None
    )


def stages_table(rows: list[Row], link: str) -> str:
    names = ("compute", "exposed", "encode", "wire", "decode", "wait")
    return table(
        ["setting", *names],
        [
            [row.setting.name, *(f"{1e3 * row.links[link].stages[name]:.1f}" for name in names)]
            for row in rows
        ],
    )


def settings_table(rows: list[Row]) -> str:
    meaning = {
        "both": "the paper and the default",
        "paper": "the paper",
        "default": "the default",
        "ours": "this project, not the default",
    }
    return table(
        ["setting", "spec", "optimizer", "from", ""],
        [
            [one.name, f"`{one.spec}`", one.optimizer, meaning[one.kind], one.note]
            for one in (row.setting for row in rows)
        ],
    )


def scaling_table(curves: dict[str, list[Json]]) -> str:
    header = ["method"]
    for ranks in plan.SCALING_RANKS:
        header += [f"N={ranks}", "vs fp32", "MB", "/ formula"]
    lines = []
    for method, points in curves.items():
        line = [method]
        for point in points:
            line += [
                f"{1e3 * point['seconds']:.0f} ms",
                f"{point['fp32_seconds'] / point['seconds']:.1f}x",
                f"{point['bytes_sent'] / 1e6:.2f}",
                f"{point['bytes_sent'] / point['formula_bytes']:.2f}",
            ]
        lines.append(line)
    return table(header, lines)


def rate_distortion_table(curves: dict[str, list[Json]]) -> str:
    return table(
        ["spec", "bits per element", "error of a step", "error of the sum"],
        [
            [
                f"`{point['spec']}`",
                f"{point['bits']:.3f}",
                f"{point['nmse']:.3g}",
                f"{point['sum_nmse']:.3g}",
            ]
            for points in curves.values()
            for point in points
        ],
    )


@dataclass(frozen=True)
class Found:
    """All results of a reproduction."""

    rows: list[Row]
    heads: list[Headline]
    goals: list[Target]
    distortion: dict[str, list[Json]]
    scaling: dict[str, list[Json]]


@dataclass(frozen=True)
class Extent:
    """How much was run."""

    epochs: float
    recorded_steps: int
    timed_steps: int


def write(folder: Path, found: Found, extent: Extent) -> Path:
    rows = found.rows
    charts = folder / "results"
    charts.mkdir(parents=True, exist_ok=True)
    from . import plots  # here, because the tests of claims have no matplotlib

    plots.accuracy_over_time(rows, charts / "accuracy-over-time.svg")
    plots.accuracy_and_ratio(rows, charts / "accuracy-and-ratio.svg")
    plots.step_times(rows, charts / "step-times.svg")
    plots.rate_distortion(found.distortion, charts / "rate-distortion.svg")
    plots.scaling(found.scaling, charts / "scaling.svg")
    steps = rows[0].curve[-1][0]
    same = (
        "all replicas ended with the same bits"
        if all(row.identical for row in rows)
        else "REPLICAS DIFFERED"
    )
    names = {row.setting.name for row in rows}
    absent = [f"{one.name} (`{one.spec}`)" for one in plan.SETTINGS if one.name not in names]
    missing = f"\nNot trained yet and left out: {', '.join(absent)}.\n" if absent else ""
    slow_stages, fast_stages = (stages_table(rows, link) for link in plan.LINKS)
    text = f"""# Results

Written by `make reproduce` on {date.today().isoformat()}; {cpu()}, {os.cpu_count()} cores, {plan.RANKS} ranks (threads of one process).
All figures are of this one run: times differ between machines, and accuracy differs by about 0.7 points between seeds.
[The notes](notes/results.md) explain the figures, and why some aims are missed.
[The claims](claims.md) of the papers have a verdict each.

**Set-up.** CIFAR-10, {plan.RANKS} ranks of 32 images, {extent.epochs:g} epochs ({steps} steps), seed {plan.SEED}, random crops and flips;
one-cycle learning rate up to 0.05 with momentum 0.9, or Adam.
The network is `{plan.MODEL}`, {plan.PARAMETERS:,} parameters in two convolutions and three linear layers.
Two cores train it in minutes, and it has more than the one kind of layer that suits a method.
Every setting sees the same images in the same order; {same}.

**Times.** In the middle of each training {extent.timed_steps} steps are timed over each emulated link, with the exchange overlapping backward (means).
Steps that a method sends uncompressed count with fp32's time, by their fraction of the run.
The time to {100 * LEVEL:.0f} % of fp32's final accuracy is the number of steps until the test accuracy reaches it, times the time per step over the link.
That accuracy is measured on 2,000 images and is the mean of two evaluations {plan.EVALUATE_EVERY} steps apart.
*fewer bytes sent*: the bytes that a rank sends with fp32 / those that the busiest rank sends to all others, over the whole run.
*payload*: the bytes of one payload as a fraction of the gradient's; a method that gathers sends it to every other rank.
Accuracies differ by about 0.7 points between seeds: smaller differences than that are noise.

{results_table(rows)}
{nested_text(rows)}{missing}
![accuracy over time](results/accuracy-over-time.svg)

![accuracy and ratio](results/accuracy-and-ratio.svg)

## Aims

{table(["aim", "found", ""], [[goal.what, goal.found, "met" if goal.met else "**missed**"] for goal in found.goals])}

## The papers' headlines

{table(["paper", "headline", "here", "what differs"], [[one.paper, one.claim, one.here, one.differs] for one in found.heads])}

## The settings

{settings_table(rows)}

## Where a step's time goes

Milliseconds of a compressed step.
*compute* and *exposed* (the wait for the exchange after backward) add up to the step.
*encode*, *wire*, *decode* and *wait* (for the slowest rank) are the engine's and mostly overlap with backward.
With fewer cores than ranks each of them also waits for a core.

Link {plan.LINKS[0]}:

{slow_stages}

Link {plan.LINKS[1]}:

{fast_stages}

![step times](results/step-times.svg)

## Error against size

{extent.recorded_steps} consecutive steps of the fp32 run's gradients, recorded on {plan.RANKS} ranks in the middle of the training, through `thinreduce bench codec --gradients`.
The left chart is the squared error of one step's mean over its energy (second half of the steps), without feedback where that can be turned off.
The right chart is the error of the sum of all steps: values that are sent late are no error there, and noise averages out.
`sketch`, `powersgd` and `variance` (dotted) always keep the values that they did not send, so only the right chart is fair to them.
`variance` runs without its second moment here, which is not recorded; the bits of `gradiveq` include its four uncompressed steps, a tenth of those recorded.

![rate-distortion](results/rate-distortion.svg)

<details><summary>the points</summary>

{rate_distortion_table(found.distortion)}

</details>

## More ranks

`thinreduce bench reduce --ranks N --floats {plan.SCALING_FLOATS} --link {plan.SCALING_LINK} --steps 3 --method METHOD`: synthetic gradients with the layers of ResNet-50, N threads on {os.cpu_count()} cores
(methods that encode slowly suffer here more than on N machines).
*MB*: sent per rank.
*formula*: of [methods.md](methods.md); where the size depends on the data, it uses the measured payload.

{scaling_table(found.scaling)}

![scaling](results/scaling.svg)
"""
    page = folder / "results.md"
    page.write_text(text)
    (charts / "results.json").write_text(json.dumps(asdict(found), indent=1) + "\n")
    return page


def speak(rows: list[Row], goals: list[Target]) -> str:
    """Returns a short table for the terminal."""
    lines = [
        f"{'setting':16} {'accuracy':>9} {'fewer':>9}"
        + "".join(f" {link:>9}" for link in plan.LINKS)
    ]
    for row in rows:
        faster = "".join(f" {row.links[link].speedup:>8.1f}x" for link in plan.LINKS)
        lines.append(
            f"{row.setting.name:16} {100 * row.accuracy:>7.2f} % {row.fewer:>8.1f}x{faster}"
        )
    lines += [f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {goal.found}" for goal in goals]
    return "\n".join(lines)
