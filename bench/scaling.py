#!/usr/bin/env python3
"""Measures how the methods scale in the virtual cluster, and draws the speedups over fp32.

    bench/scaling.py docs/scaling             runs what docs/scaling/results.json lacks, then draws
    bench/scaling.py docs/scaling --draw      only draws what is there

A run is `thinreduce bench reduce --simulate LINK --ranks N` with all methods that are missing for
that link and number of ranks, so that fp32 and bf16 are measured once for all of them. Its results
are written at once, and a measurement that was interrupted goes on where it stopped. The charts are
drawn anew after every run. Each line says how long the rest will take: a run takes about as long
per rank whatever their number is, and the first runs tell how long that is.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

LINKS = ["1gbit,0.1ms", "1gbit,5ms", "100mbit,15ms"]
RANKS = [2, 4, 8, 16, 32, 64, 128, 256]
# The colours of the charts in docs/results.
COLOURS = {
    "bf16": "#7f7f7f", "gradiveq": "#0072b2", "fft": "#e69f00", "variance": "#cc79a7",
    "dqsg": "#009e73", "ndqsg": "#7cc36e", "sketch": "#d55e00", "topk": "#8c564b",
    "qsgd": "#9467bd", "terngrad": "#bcbd22", "powersgd": "#17becf",
}  # fmt: skip
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 110, 40, 50
FIELDS = ["seconds", "fp32_seconds", "bf16_seconds", "bytes_sent", "latencies", "nmse"]
Results = dict[str, dict[str, Any]]


def key_of(link: str, ranks: int, method: str, floats: str) -> str:
    return f"{link} {ranks} {method} {floats}"


class Run(NamedTuple):
    link: str
    ranks: int
    methods: list[str]

    def weight(self) -> float:
        """Returns its expected time, in no particular unit: fp32 and bf16 are measured, too, and
        the messages of a step grow with the square of the ranks."""
        return (len(self.methods) + 2) * self.ranks * (1 + self.ranks / 256)


def measure(program: str, run: Run, floats: str) -> Results:
    command = [program, "bench", "reduce", "--json", "--steps", "1", "--simulate", run.link]
    command += ["--ranks", str(run.ranks), "--floats", floats]
    for method in run.methods:
        command += ["--method", method]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    parsed = json.loads(done.stdout)
    results = parsed if isinstance(parsed, list) else [parsed]
    return {
        key_of(run.link, run.ranks, method, floats): {field: result[field] for field in FIELDS}
        for method, result in zip(run.methods, results)
    }


def missing_runs(arguments: argparse.Namespace, results: Results) -> list[Run]:
    """Returns the runs that `results` lack, those with few ranks first."""
    runs = [
        Run(
            link,
            ranks,
            [
                m
                for m in arguments.methods
                if key_of(link, ranks, m, arguments.floats) not in results
            ],
        )
        for ranks in sorted(arguments.ranks)
        for link in arguments.links
    ]
    return [run for run in runs if run.methods]


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def measure_missing(arguments: argparse.Namespace, file: Path, results: Results) -> None:
    """Runs what `results` lack, adds it there and to `file`, and draws."""
    missing = missing_runs(arguments, results)
    began = time.monotonic()
    finished = 0.0
    for number, run in enumerate(missing, 1):
        what = f"{run.ranks} ranks, {run.link}, {len(run.methods)} methods"
        print(f"{number} of {len(missing)}: {what}", flush=True)
        measured = measure(arguments.program, run, arguments.floats)
        results.update(measured)
        partial = file.with_suffix(".new")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(file)
        draw(arguments, results)
        speedups = [
            f"{method} {one['fp32_seconds'] / one['seconds']:.2f}x"
            for method, one in zip(run.methods, measured.values())
        ]
        elapsed = time.monotonic() - began
        finished += run.weight()
        left = elapsed / finished * sum(one.weight() for one in missing[number:])
        print("   " + ", ".join(speedups), flush=True)
        print(f"   {minutes(elapsed)} until now, about {minutes(left)} left", flush=True)


class Chart:
    """An SVG with logarithmic axes."""

    def __init__(self, ranks: list[int], largest: float, title: str) -> None:
        self.ranks = [math.log2(n) for n in (ranks[0], ranks[-1])]
        self.top = math.ceil(math.log2(largest))
        self.parts: list[str] = []
        self.text(WIDTH / 2, 20, title)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "ranks")
        self.text(20, HEIGHT / 2, "times faster than fp32", 'transform="rotate(-90 20 210)"')
        for n in ranks:
            self.text(self.x(n), HEIGHT - BOTTOM + 18, str(n))
        for power in range(-1, self.top + 1):
            y = self.y(2.0**power)
            colour = "#000" if power == 0 else "#ddd"
            self.parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{colour}"/>')
            self.text(LEFT - 16, y + 4, f"{2.0**power:g}")

    def x(self, ranks: float) -> float:
        low, high = self.ranks
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(ranks) - low) / max(high - low, 1)

    def y(self, speedup: float) -> float:
        power = max(math.log2(speedup), -1)  # slower than half of fp32 is drawn there
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (power + 1) / (self.top + 1)

    def text(self, x: float, y: float, text: str, more: str = 'fill="#000"') -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {more}>{text}</text>'
        )

    def line(self, name: str, number: int, points: list[tuple[int, float]]) -> None:
        colour = COLOURS.get(name, "#000")
        places = [f"{self.x(n):.1f} {self.y(speedup):.1f}" for n, speedup in points]
        self.parts.append(
            f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        y = TOP + 20 * number
        self.parts.append(
            f'<path d="M{WIDTH - RIGHT + 8} {y}h16" stroke="{colour}" stroke-width="2"/>'
        )
        self.text(WIDTH - RIGHT + 62, y + 4, name)

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        head += (
            'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        )
        return "\n".join([head, *self.parts, "</svg>\n"])


def draw(arguments: argparse.Namespace, results: Results) -> None:
    for link in arguments.links:
        speedups: dict[str, list[tuple[int, float]]] = {}
        for method in arguments.methods:
            for ranks in sorted(arguments.ranks):
                run = results.get(key_of(link, ranks, method, arguments.floats))
                if run is None:
                    continue
                speedup = run["fp32_seconds"] / run["seconds"]
                speedups.setdefault(method, []).append((ranks, speedup))
        if not speedups:
            continue
        largest = max(speedup for line in speedups.values() for _, speedup in line)
        measured = sorted({ranks for line in speedups.values() for ranks, _ in line})
        chart = Chart(measured, largest, f"{link}, {arguments.floats} floats")
        for number, (method, points) in enumerate(speedups.items()):
            chart.line(method, number, points)
        (arguments.folder / f"{link.replace(',', '-')}.svg").write_text(chart.svg())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the JSON and the charts")
    parser.add_argument("--program", default="build/release/bin/thinreduce")
    parser.add_argument("--floats", default="1M")
    parser.add_argument("--links", nargs="*", default=LINKS)
    parser.add_argument("--ranks", nargs="*", type=int, default=RANKS)
    parser.add_argument("--methods", nargs="*", default=list(COLOURS))
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = arguments.folder / "results.json"
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    if not arguments.draw:
        measure_missing(arguments, file, results)
    draw(arguments, results)


if __name__ == "__main__":
    main()
