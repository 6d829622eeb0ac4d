#!/usr/bin/env python3
"""Checks the planner: time per step with `auto` against fp32, bf16 and every fixed candidate.

    bench/plan_grid.py build/plan-grid.json      runs what the file lacks, then prints the table

Every point is one `thinreduce bench reduce --simulate LINK --ranks N --floats F` with all
candidates in the same process. Its result is written at once, so a measurement that was interrupted
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RATES = ["10mbit", "50mbit", "100mbit", "500mbit", "1gbit", "2.5gbit", "10gbit", "unlimited"]
LATENCIES = ["0.1ms", "5ms", "15ms", "50ms"]
RANKS = [2, 4, 8, 16]
FLOATS = ["0.8M", "25.6M"]
CANDIDATES = [
    "fp32", "bf16", "dqsg:levels=31", "dqsg:levels=15", "fft:theta=0.5", "dqsg", "ndqsg", "fft",
    "topk:density=0.1", "terngrad", "dqsg:levels=3", "topk", "qsgd",
]  # fmt: skip
Point = dict[str, Any]


def measure(program: str, link: str, ranks: int, floats: str, spec: str) -> Point:
    base = [program, "bench", "reduce", "--json", "--simulate", link, "--ranks", str(ranks)]
    base += ["--floats", floats, "--steps", "3"]
    methods = [spec, *CANDIDATES]
    command = base + [word for method in methods for word in ("--method", method)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    planned, *fixed = json.loads(done.stdout)
    bucket = planned["plan"]["buckets"][0]
    allowed = {c["spec"]: c for c in bucket["candidates"] if c["allowed"]}
    return {
        "link": link, "ranks": ranks, "floats": floats, "spec": spec,
        "choice": bucket["spec"],
        "seconds": planned["seconds"],
        "predicted": {name: c["seconds"] for name, c in allowed.items()},
        "measured": {
            name: result["seconds"]
            for name, result in zip(CANDIDATES, fixed, strict=True)
            if name in allowed
        },
    }  # fmt: skip


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def print_table(points: list[Point]) -> None:
    print("| link | ranks | floats | choice | auto | fp32 | bf16 | best fixed | off by |")
    print("|---|---|---|---|---|---|---|---|---|")
    slower, regret, off = [], [], []
    for point in points:
        measured, predicted = point["measured"], point["predicted"]
        plain = min(measured["fp32"], measured["bf16"])
        best = min(measured, key=lambda name: measured[name])
        slower.append(point["seconds"] / plain)
        regret.append(point["seconds"] / measured[best] - 1)
        errors = [abs(predicted[name] / measured[name] - 1) for name in measured]
        off += errors
        own = abs(predicted[point["choice"]] / point["seconds"] - 1)
        times = [point["seconds"], measured["fp32"], measured["bf16"], measured[best]]
        cells = [f"{1000 * seconds:.3g} ms" for seconds in times]
        cells[-1] += f" ({best})"
        print(
            f"| {point['link']} | {point['ranks']} | {point['floats']} | {point['choice']} | "
            + " | ".join(cells)
            + f" | {100 * own:.0f} % |"
        )
    print(
        f"\n{len(points)} points. auto against the better of fp32 and bf16: median "
        f"{statistics.median(slower):.2f}, largest {max(slower):.2f}. Regret against the best "
        f"fixed candidate: median {100 * statistics.median(regret):.1f} %, 95th percentile "
        f"{100 * percentile(regret, 0.95):.1f} %. Predictions of all candidates are off by "
        f"{100 * statistics.median(off):.0f} % (median), {100 * percentile(off, 0.95):.0f} % "
        "(95th percentile)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--program", default="build/release/bin/thinreduce")
    parser.add_argument("--spec", default="auto")
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--latencies", nargs="+", default=LATENCIES)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--floats", nargs="+", default=FLOATS)
    arguments = parser.parse_args()

    results: dict[str, Point] = {}
    if arguments.file.exists():
        results = json.loads(arguments.file.read_text())
    grid = list(
        itertools.product(arguments.floats, arguments.ranks, arguments.rates, arguments.latencies)
    )
    keys = {}
    for floats, ranks, rate, latency in grid:
        link = f"{rate},{latency}"
        keys[f"{arguments.spec} {link} {ranks} {floats}"] = (link, ranks, floats)
    missing = [key for key in keys if key not in results]
    began = time.monotonic()
    for number, key in enumerate(missing, 1):
        results[key] = measure(arguments.program, *keys[key], arguments.spec)
        partial = arguments.file.with_suffix(".new")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(arguments.file)
        left = (time.monotonic() - began) / number * (len(missing) - number)
        print(f"{number}/{len(missing)} {key}, {left / 60:.0f} min left", file=sys.stderr)
    print_table([results[key] for key in keys])


if __name__ == "__main__":
    main()
