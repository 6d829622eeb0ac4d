#!/usr/bin/env python3
"""Checks the planner: time per step with `auto` against fp32, bf16 and every fixed candidate.

    bench/plan_grid.py docs/planner.md           measures what docs/planner/grid.json lacks
    bench/plan_grid.py docs/planner.md --draw    measures nothing

Both write the tables of the page between its markers. A point of the grid is a link, a number of
ranks and a size of the gradient, on the virtual cluster. Its result is written at once, so a
measurement that was interrupted goes on where it stopped. The order is shuffled, always in the same
way, with cheap points first more often than not: whatever was measured when it stops is a fair
selection of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

RATES = ["10mbit", "50mbit", "100mbit", "500mbit", "1gbit", "2.5gbit", "10gbit", "unlimited"]
LATENCIES = ["0.1ms", "5ms", "15ms", "50ms"]
RANKS = [2, 4, 8, 16]
# Sizes of gradients, in floats: the small GPT, CifarNet and ResNet-50.
SIZES = {"gpt": 824_000, "cifarnet": 1_068_298, "25.6M": 25_600_000}
# The first steps of `auto`, planning included, that are measured. The rest of the 50 steps that a
# planner has to make up for its planning take as long as the last of them.
STEPS = 50
MEASURED = {"gpt": 50, "cifarnet": 50, "25.6M": 12}
LAST = 5
BEGIN = "<!-- grid: written by make bench-plan -->\n"
END = "<!-- end of grid -->"
Point = dict[str, Any]


class Place(NamedTuple):
    rate: str
    latency: str
    ranks: int
    size: str

    @property
    def link(self) -> str:
        return f"{self.rate},{self.latency}"

    @property
    def key(self) -> str:
        return f"{self.link} {self.ranks} {self.size}"


def order(places: list[Place]) -> list[Place]:
    chance = random.Random(21)
    weights = {p: chance.random() * math.sqrt(p.ranks * SIZES[p.size]) for p in places}
    return sorted(places, key=lambda place: weights[place])


def bench(program: str, place: Place, methods: list[str], *more: str) -> list[Point]:
    command = [program, "bench", "reduce", "--json", "--simulate", place.link, *more]
    command += ["--ranks", str(place.ranks), "--floats", str(SIZES[place.size])]
    command += [word for method in methods for word in ("--method", method)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    parsed = json.loads(done.stdout)
    return parsed if isinstance(parsed, list) else [parsed]


def first_steps(result: Point) -> float:
    """The mean of the first STEPS steps; those that were not measured are like the last ones."""
    seconds: list[float] = result["step_seconds"]
    last = statistics.median(seconds[-LAST:])
    return (sum(seconds) + (STEPS - len(seconds)) * last) / STEPS


def measure(program: str, place: Place) -> Point:
    first = ["--warmup", "0", "--steps", str(MEASURED[place.size])]
    [planned] = bench(program, place, ["auto"], *first)
    plain = bench(program, place, ["fp32", "bf16"], *first)
    [tried] = bench(program, place, ["auto:try=all"], "--steps", "1")
    [bucket] = tried["plan"]["buckets"]
    candidates = {c["spec"]: c for c in bucket["candidates"] if c["allowed"]}
    fixed = bench(program, place, list(candidates), "--steps", str(LAST))
    last = statistics.median(planned["step_seconds"][-LAST:])
    plan = planned["plan"]
    return {
        "choice": plan["buckets"][0]["spec"],
        "mean": first_steps(planned),
        "plain_mean": min(first_steps(one) for one in plain),
        "last": last,
        "planning": plan["planning_seconds"],
        "predicted": {name: c["seconds"] for name, c in candidates.items()},
        "measured": {name: one["seconds"] for name, one in zip(candidates, fixed, strict=True)},
    }


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


class Verdict(NamedTuple):
    """How `auto` does at a point, relative to fixed methods."""

    mean: float  # over 50 steps, planning included, against as many of the better of fp32 and bf16
    last: float  # of the last steps, against the better of fp32 and bf16 later
    regret: float  # time of the last steps relative to the best fixed candidate's
    off: list[float]  # predictions of all candidates
    best: str


def judge(point: Point) -> Verdict:
    measured, predicted = point["measured"], point["predicted"]
    plain = min(measured["fp32"], measured["bf16"])
    best = min(measured, key=lambda name: measured[name])
    off = [abs(predicted[name] / measured[name] - 1) for name in measured]
    regret = point["last"] / measured[best] - 1
    return Verdict(point["mean"] / point["plain_mean"], point["last"] / plain, regret, off, best)


def spread(values: list[float], show: str) -> str:
    figures = [statistics.median(values), percentile(values, 0.95), max(values)]
    return " | ".join(show.format(figure) for figure in figures)


def tables(points: dict[Place, Point], all_places: int) -> str:
    verdicts = {place: judge(point) for place, point in points.items()}
    every = list(verdicts.values())
    means = [one.mean for one in every]
    planning = [1e3 * point["planning"] for point in points.values()]
    percents = [100 * point["planning"] / (STEPS * point["mean"]) for point in points.values()]
    misses = sum(mean > 1.02 for mean in means)
    lines = [
        f"{len(points)} of {all_places} points were measured.",
        f"At {misses} of them the mean over {STEPS} steps, planning included, is above 1.02 times "
        "the better of fp32 and bf16.",
        "",
        "| | median | 95th percentile | largest |",
        "|---|---|---|---|",
        f"| mean of {STEPS} steps / better of fp32 and bf16 | {spread(means, '{:.3f}')} |",
        "| last steps / better of fp32 and bf16 | "
        + spread([one.last for one in every], "{:.3f}") + " |",
        "| regret against the best fixed method | "
        + spread([100 * one.regret for one in every], "{:.1f} %") + " |",
        "| predictions of all candidates off by | "
        + spread([100 * off for one in every for off in one.off], "{:.1f} %") + " |",
        f"| planning | {spread(planning, '{:.2f} ms')} |",
        f"| planning, part of {STEPS} steps | {spread(percents, '{:.2f} %')} |",
        "",
        "| link | ranks | gradient | choice | mean of 50 | last steps | fp32 | bf16 | best fixed "
        "| mean / plain |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for place in sorted(points, key=lambda p: (list(SIZES).index(p.size), p.ranks)):
        point, verdict = points[place], verdicts[place]
        measured = point["measured"]
        times = [point["mean"], point["last"], measured["fp32"], measured["bf16"]]
        cells = [f"{1000 * seconds:.3g} ms" for seconds in times]
        best = f"{1000 * measured[verdict.best]:.3g} ms (`{verdict.best}`)"
        lines.append(
            f"| {place.link} | {place.ranks} | {place.size} | `{point['choice']}` | "
            + " | ".join(cells) + f" | {best} | {verdict.mean:.2f} |"
        )  # fmt: skip
    return "\n".join(lines)


def write_page(page: Path, points: dict[Place, Point], all_places: int) -> None:
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines '{BEGIN.strip()}' and '{END}'")
    page.write_text(f"{before}{begin}\n{tables(points, all_places)}\n\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="the page with the tables")
    parser.add_argument("--program", default="build/release/bin/thinreduce")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    file = arguments.page.with_suffix("") / "grid.json"
    file.parent.mkdir(exist_ok=True)
    results: dict[str, Point] = json.loads(file.read_text()) if file.exists() else {}
    places = [Place(*one) for one in itertools.product(RATES, LATENCIES, RANKS, SIZES)]
    missing = [] if arguments.draw else [p for p in order(places) if p.key not in results]
    began = time.monotonic()
    for number, place in enumerate(missing, 1):
        if time.monotonic() - began > 60 * arguments.minutes:
            break
        results[place.key] = measure(arguments.program, place)
        partial = file.with_suffix(".new")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(file)
        verdict = judge(results[place.key])
        print(
            f"{number}/{len(missing)} {place.key}: {results[place.key]['choice']}, mean "
            f"{verdict.mean:.3f}, last {verdict.last:.3f}, regret {100 * verdict.regret:.1f} %, "
            f"planning {1e3 * results[place.key]['planning']:.2f} ms, "
            f"{(time.monotonic() - began) / 60:.1f} min",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    measured = {place: results[place.key] for place in places if place.key in results}
    if measured:
        write_page(arguments.page, measured, len(places))


if __name__ == "__main__":
    main()
