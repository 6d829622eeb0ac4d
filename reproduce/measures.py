"""From runs to figures: what one row of the results table holds, and how each number is made."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import mean

from . import settings as plan
from .runs import Json, Program, read_lines
from .settings import Setting

GRADIENT_BYTES = 4 * plan.PARAMETERS
LEVEL = 0.95  # of the accuracy at which the uncompressed run ends


@dataclass
class OverLink:
    """A setting over one link."""

    step_seconds: float
    stages: dict[str, float]  # encode, wire, decode, wait: the engine's; compute and exposed: the trainer's
    speedup: float = 0  # of a step, against the uncompressed run
    level_seconds: float | None = None


@dataclass
class Row:
    setting: Setting
    accuracy: float
    identical: bool
    ratio: float
    bytes_sent: float  # by the busiest rank, a step
    paper_ratio: float | None  # elements / elements sent
    uncompressed_share: float  # of the steps
    level_step: int | None
    curve: list[tuple[int, float]]  # step, accuracy
    links: dict[str, OverLink] = field(default_factory=dict)
    points: float = 0  # percentage points against the uncompressed run


def smooth(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The mean of each evaluation and the one before: 2,000 images tell an accuracy to about a point."""
    return [curve[0]] + [(step, (value + before) / 2) for (_, before), (step, value) in zip(curve, curve[1:])]


def reached(curve: list[tuple[int, float]], level: float) -> int | None:
    return next((step for step, accuracy in smooth(curve) if accuracy >= level), None)


def is_uncompressed(step: Json) -> bool:
    return step["payload_bytes"] > 0.9 * GRADIENT_BYTES


def row_of(program: Program, setting: Setting) -> Row:
    run = program.run_folder(setting)
    summary = json.loads((run / "summary.json").read_text())
    steps = read_lines(run / "steps.jsonl")
    evaluations = read_lines(run / "evaluations.jsonl")
    sent = [step["statistics"]["sent"] for step in steps if "sent" in step["statistics"]]
    return Row(
        setting=setting,
        accuracy=summary["accuracy"],
        identical=summary["identical"],
        ratio=summary["ratio"],
        bytes_sent=mean(step["bytes_sent"] for step in steps),
        paper_ratio=1 / mean(sent) if sent else None,
        uncompressed_share=mean(is_uncompressed(step) for step in steps),
        level_step=None,
        curve=[(one["step"], one["accuracy"]) for one in evaluations],
    )


def over_link(steps: list[Json], compressed: bool) -> OverLink:
    """Means over the timed steps; if `compressed`, over those only that were, unless none was."""
    if compressed:
        steps = [step for step in steps if not is_uncompressed(step)] or steps
    stages = {name: mean(step["stages"][name] for step in steps) for name in steps[0]["stages"]}
    for name in ("compute", "exposed"):
        stages[name] = mean(step[f"{name}_seconds"] for step in steps)
    return OverLink(mean(step["step_seconds"] for step in steps), stages)


def rows(program: Program, settings: list[Setting], timed_steps: int) -> list[Row]:
    """Every setting's row; the uncompressed runs are those that the others are compared with."""
    found = {setting.name: row_of(program, setting) for setting in settings}
    for link in plan.LINKS:
        for row in found.values():
            timed = program.time_steps(row.setting, link, timed_steps)
            row.links[link] = over_link(timed, compressed=row.setting.spec != "fp32")
        for row in found.values():
            uncompressed = found[row.setting.baseline].links[link].step_seconds
            here = row.links[link]
            if row.setting.spec != "fp32":
                # Warm-up and sampling steps travel uncompressed: they cost what fp32 costs.
                share = row.uncompressed_share
                here.step_seconds = share * uncompressed + (1 - share) * here.step_seconds
            here.speedup = uncompressed / here.step_seconds
    for row in found.values():
        baseline = found[row.setting.baseline]
        row.points = 100 * (row.accuracy - baseline.accuracy)
        row.level_step = reached(row.curve, LEVEL * baseline.accuracy)
        if row.level_step is not None:
            for here in row.links.values():
                here.level_seconds = row.level_step * here.step_seconds
    return list(found.values())


# Rate-distortion.


def rate_distortion(program: Program, gradients: str) -> dict[str, list[Json]]:
    curves: dict[str, list[Json]] = {}
    for family, specs in plan.RATE_DISTORTION.items():
        curves[family] = []
        for spec in specs:
            found = program.bench(f"codec-{spec}", spec, "codec", "--gradients", gradients)
            bits = 8 * found["wire_bytes"] / found["floats"]
            curves[family].append({"spec": spec, "bits": bits, "nmse": found["nmse"], "sum_nmse": found["sum_nmse"]})
    return curves


# Scaling.


def formula_bytes(method: str, ranks: int, floats: int, payload: float) -> tuple[float, str]:
    """Bytes that a rank sends by the formula of docs/methods.md. Where the size depends on the data, the
    measured payload stands in it, so that what is checked is the growth with the ranks."""
    ring = 2 * (ranks - 1) / ranks
    if method == "fp32":
        return ring * 4 * floats, "2(N−1)/N · 4n"
    if method == "bf16":
        return ring * 2 * floats, "2(N−1)/N · 2n"
    if method == "dqsg":
        # 7 symbols a rank: a sum over h ranks has 6h + 1 of them; a step a block of 512 by a ring of its own.
        def bits(h: int) -> int:
            return (6 * h).bit_length()

        hops = sum(bits(h) for h in range(1, ranks)) + (ranks - 1) * bits(ranks)
        return floats / ranks * hops / 8 + ring * 4 * floats / 512, "n/N · (w(1) + … + w(N−1) + (N−1)·w(N)) / 8 + scales"
    if method in ("gradiveq", "sketch", "powersgd"):
        return ring * payload, "2(N−1)/N · payload"
    return (ranks - 1) * payload, "(N−1) · payload"


def scaling(program: Program) -> dict[str, list[Json]]:
    curves: dict[str, list[Json]] = {}
    for method in plan.SCALING_METHODS:
        curves[method] = []
        for ranks in plan.SCALING_RANKS:
            found = program.bench(
                f"scaling-{method}-{ranks}", method, "reduce", "--ranks", str(ranks),
                "--floats", str(plan.SCALING_FLOATS), "--link", plan.SCALING_LINK, "--steps", "3",
            )  # fmt: skip
            payload = 4 * plan.SCALING_FLOATS / found["ratio"]
            expected, formula = formula_bytes(method, ranks, plan.SCALING_FLOATS, payload)
            curves[method].append(
                {
                    "ranks": ranks,
                    "seconds": found["seconds"],
                    "fp32_seconds": found["fp32_seconds"],
                    "bytes_sent": found["bytes_sent"],
                    "formula_bytes": expected,
                    "formula": formula,
                    "identical": found["identical"],
                }
            )
    return curves
