"""Writes the table of a claim's trainings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from reproduce.long_settings import RANKS
from reproduce.runs import Json
from reproduce.tables import table

from .trained import PLAN, Trained
from .wording import code, percent, times


def with_spread(values: Sequence[float], text: str, sign: str = "") -> str:
    """Writes the mean as `text`, and the lowest and the highest of several values."""
    spread = f" ({min(values):{sign}.2f} to {max(values):{sign}.2f})" if len(values) > 1 else ""
    return text + spread


def accuracy(rows: list[Json]) -> str:
    found = [row["accuracy"] for row in rows]
    return with_spread([100 * one for one in found], percent(mean(found), 2))


def points(trained: Trained, setting: str) -> str:
    """Writes the points against fp32, and whether they are noise."""
    gap = trained.gap(setting)
    if gap is None:
        return "fp32 is not trained"
    return with_spread(gap.by_seed, f"{gap.mean:+.2f}", "+") + (", noise" if gap.is_noise else "")


def line(trained: Trained, setting: str) -> list[str]:
    rows = trained.of(setting)
    fewer = trained.fewer(setting)
    is_baseline = setting == trained.baseline(setting)
    return [
        code(rows[0]["spec"]),
        ", ".join(str(row["seed"]) for row in rows),
        accuracy(rows),
        "" if is_baseline else points(trained, setting),
        "" if is_baseline or not fewer else times(fewer),
        f"1/{mean(row['ratio'] for row in rows):.1f}",
    ]


def training_table(trained: Trained, settings: Sequence[str]) -> str:
    """Returns the trainings of these settings and their baselines; "" if none has ended."""
    present = [setting for setting in settings if trained.of(setting)]
    if not present:
        return ""
    baselines = dict.fromkeys(trained.baseline(setting) for setting in present)
    present = [*(one for one in baselines if trained.of(one)), *present]
    planned = PLAN[present[-1]][0]
    header = ["spec", "seeds", "accuracy", "vs fp32", "fewer bytes sent", "payload"]
    how = f"{planned.optimizer}, {planned.epochs:g} epochs, {RANKS} ranks"
    last = max(row["finished"] for setting in present for row in trained.of(setting))
    return f"""
Trainings of `{planned.model}` on CIFAR-10 ({how}); the last one ended on {last} ([all](results/long.md)).
*vs fp32* is the accuracy minus that of fp32 with the same seed, in percentage points; of several seeds the mean, and the lowest to the highest.

{table(header, [line(trained, setting) for setting in present])}
"""
