"""Computes the figures of the results page from the runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import mean

from . import settings as plan
from .runs import Json, Program, read_lines
from .settings import Setting

GRADIENT_BYTES = 4 * plan.PARAMETERS
LEVEL = 0.95  # fraction of the uncompressed run's final accuracy


@dataclass
class OverLink:
    """A setting over one link."""

    step_seconds: float
    # Seconds per step: encode, wire, decode and wait of the engine, compute and exposed of the
    # trainer.
    stages: dict[str, float]
    speedup: float = 0  # of a step, over the uncompressed run
    level_seconds: float | None = None  # until the accuracy reaches LEVEL


@dataclass
class Row:
    """A setting with all its figures: one row of the results table."""

    setting: Setting
    accuracy: float
    identical: bool  # whether all ranks ended with the same bits
    ratio: float  # bytes of the gradient / bytes of the payload
    bytes_sent: float  # per step, by the busiest rank
    paper_ratio: float | None  # elements / elements sent
    nested: float | None  # fraction of the nested ranks' elements that had nested codes
    uncompressed_fraction: float  # of the steps
    level_step: int | None  # the first step at which the accuracy reaches LEVEL
    curve: list[tuple[int, float]]  # step, accuracy
    links: dict[str, OverLink] = field(default_factory=dict)
    points: float = 0  # percentage points of accuracy above the uncompressed run
    fewer: float = 1  # bytes that a rank of the uncompressed run sends / bytes sent


def smooth(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Averages each evaluation with the one before: one of 2,000 images errs by about a point."""
    pairs = zip(curve, curve[1:])
    return [curve[0], *((step, (value + before) / 2) for (_, before), (step, value) in pairs)]


def first_step_at(curve: list[tuple[int, float]], level: float) -> int | None:
    """Returns the first step with at least this accuracy, None if there is none."""
    return next((step for step, accuracy in smooth(curve) if accuracy >= level), None)


def is_uncompressed(step: Json) -> bool:
    return step["payload_bytes"] > 0.9 * GRADIENT_BYTES


def row_of(program: Program, setting: Setting) -> Row:
    run = program.run_folder(setting)
    summary = json.loads((run / "summary.json").read_text())
    steps = read_lines(run / "steps.jsonl")
    evaluations = read_lines(run / "evaluations.jsonl")

    def statistic(name: str) -> list[float]:
        return [step["statistics"][name] for step in steps if name in step["statistics"]]

    sent, nested = statistic("sent"), statistic("nested_fraction")
    return Row(
        setting=setting,
        accuracy=summary["accuracy"],
        identical=summary["identical"],
        ratio=summary["ratio"],
        bytes_sent=mean(step["bytes_sent"] for step in steps),
        paper_ratio=1 / mean(sent) if sent else None,
        nested=mean(nested) if nested else None,
        uncompressed_fraction=mean(is_uncompressed(step) for step in steps),
        level_step=None,
        curve=[(one["step"], one["accuracy"]) for one in evaluations],
    )


def over_link(steps: list[Json], compressed: bool) -> OverLink:
    """Averages the timed steps: with `compressed` only the compressed ones, if there are any."""
    if compressed:
        steps = [step for step in steps if not is_uncompressed(step)] or steps
    stages = {name: mean(step["stages"][name] for step in steps) for name in steps[0]["stages"]}
    for name in ("compute", "exposed"):
        stages[name] = mean(step[f"{name}_seconds"] for step in steps)
    return OverLink(mean(step["step_seconds"] for step in steps), stages)


def rows(program: Program, settings: list[Setting], timed_steps: int) -> list[Row]:
    """Returns the row of every setting, compared with its uncompressed run."""
    found = {setting.name: row_of(program, setting) for setting in settings}
    for link in plan.LINKS:
        for row in found.values():
            timed = program.time_steps(row.setting, link, timed_steps)
            row.links[link] = over_link(timed, compressed=row.setting.spec != "fp32")
        for row in found.values():
            uncompressed = found[row.setting.baseline].links[link].step_seconds
            here = row.links[link]
            if row.setting.spec != "fp32":
                # Warm-up and sampling steps are sent uncompressed and take the time of fp32.
                fraction = row.uncompressed_fraction
                here.step_seconds = fraction * uncompressed + (1 - fraction) * here.step_seconds
            here.speedup = uncompressed / here.step_seconds
    for row in found.values():
        baseline = found[row.setting.baseline]
        row.points = 100 * (row.accuracy - baseline.accuracy)
        row.fewer = baseline.bytes_sent / row.bytes_sent
        row.level_step = first_step_at(row.curve, LEVEL * baseline.accuracy)
        if row.level_step is not None:
            for here in row.links.values():
                here.level_seconds = row.level_step * here.step_seconds
    return list(found.values())


def rate_distortion(program: Program, gradients: str) -> dict[str, list[Json]]:
    """Returns bits per element and errors on recorded gradients, per method and spec."""
    curves: dict[str, list[Json]] = {}
    for family, specs in plan.RATE_DISTORTION.items():
        curves[family] = []
        for spec in specs:
            found = program.bench(f"codec-{spec}", spec, "codec", "--gradients", gradients)
            bits = 8 * found["wire_bytes"] / found["floats"]
            errors = {key: found[key] for key in ("nmse", "sum_nmse")}
            curves[family].append({"spec": spec, "bits": bits, **errors})
    return curves


def formula_bytes(method: str, ranks: int, floats: int, payload: float) -> tuple[float, str]:
    """Returns the bytes that a rank sends by the formula of docs/methods.md, and the formula.

    If the size depends on the data, it uses the measured payload: then only the growth with the
    number of ranks is checked.
    """
    ring = 2 * (ranks - 1) / ranks
    if method == "fp32":
        return ring * 4 * floats, "2(N−1)/N · 4n"
    if method == "bf16":
        return ring * 2 * floats, "2(N−1)/N · 2n"
    if method == "dqsg":
        # Codes have 7 symbols per rank, so the sum over h ranks has 6h + 1. A separate ring reduces
        # one scale per block of 512.
        def bits(h: int) -> int:
            return (6 * h).bit_length()

        hops = sum(bits(h) for h in range(1, ranks)) + (ranks - 1) * bits(ranks)
        expected = floats / ranks * hops / 8 + ring * 4 * floats / 512
        return expected, "n/N · (w(1) + … + w(N−1) + (N−1)·w(N)) / 8 + scales"
    if method in ("gradiveq", "sketch", "powersgd"):
        return ring * payload, "2(N−1)/N · payload"
    return (ranks - 1) * payload, "(N−1) · payload"


def scaling(program: Program) -> dict[str, list[Json]]:
    """Returns the time and the bytes of a reduction, per method and number of ranks."""
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
