"""Claim: the bytes grow with k and the number of ranks only, so that many ranks can train."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..claim import FAILS, IN_PART, Claim, Context, Json, Shown
from ..commands import GBIT, virtual
from ..wording import code, milliseconds

RANKS = (4, 16, 64)
SPECS = (
    "sketch",
    "sketch:preset=paper,density=0.05,min_values=1",
    "topk:density=0.05,collective=gather",
)


def measure(bench: Bench) -> Json:
    found: Json = {}
    for ranks in RANKS:
        runs = bench.reduce(ranks, GBIT, "--floats", "1000000", "--steps", "1", methods=SPECS)
        found[str(ranks)] = [
            {
                "spec": spec,
                "bytes": one["bytes_sent"],
                "fp32_seconds": one["fp32_seconds"],
                "seconds": one["seconds"],
            }
            for spec, one in zip(SPECS, runs)
        ]
    return found


def line(spec: str, runs: list[Json]) -> list[str]:
    cells = [f"{one['bytes'] / 1e3:,.0f} kB, {milliseconds(one['seconds'])}" for one in runs]
    return [code(spec), *cells]


def show(found: Json, context: Context) -> Shown:
    by_spec = {spec: [runs[i] for runs in found.values()] for i, spec in enumerate(SPECS)}
    ours, paper, topk = (runs[-1]["bytes"] / runs[0]["bytes"] for runs in by_spec.values())
    lines = [line(spec, runs) for spec, runs in by_spec.items()]
    text = f"""
Bytes that the busiest rank sends per step, and milliseconds in virtual time at {GBIT}; 1 M floats with ResNet-50's layers.
With fp32 a rank sends {8 * 3 / 4:.0f} MB (4 ranks) to {8 * 63 / 64:.2f} MB (64 ranks).

{table(["spec", *(f"{n} ranks" for n in found)], lines)}

From 4 to 64 ranks the bytes per rank grow {ours:.2f} times (our default), {paper:.2f} times (the paper's algorithm) and {topk:.1f} times (top-k, gathered).
"""
    figure = (
        f"bytes per rank with 64 ranks / with 4: our default {ours:.2f}, the paper's algorithm "
        f"{paper:.2f}, gathered top-k {topk:.1f}; accuracy with many ranks is not trained yet"
    )
    return Shown(IN_PART if max(ours, paper) < 1.5 else FAILS, figure, text)


CLAIM = Claim(
    name="sketch-workers",
    system="Sketched-SGD",
    claim="W ranks send Θ(kW) bytes in all for k elements, so the method scales to many ranks",
    commands=(virtual(1000000, "--method sketch"),),
    measure=measure,
    show=show,
    seconds=60,
    missing=(
        "thinreduce train --model fc-300-100 --ranks W --batch 256/W --epochs 2 --method sketch",
    ),
    rule="""
The claim does not hold if the bytes per rank grow by half or more from 4 to 64 ranks.
Otherwise it holds in part, until trainings with many ranks show the accuracy.
""",
)
