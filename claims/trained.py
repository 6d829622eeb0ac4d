"""The trainings of `make reproduce-long`, as far as docs/results/long.json has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean

from reproduce.long_settings import TRAININGS, Training
from reproduce.runs import Json

from .noise import Gap

UNTRAINED = "no training can be compared with fp32 yet; `make reproduce-long` makes the trainings"


def without_seed(name: str, training: Training) -> str:
    return name[: -len(f"-{training.seed}")]


# All seeds of a setting, by its name: that of a training without the seed.
PLAN: dict[str, list[Training]] = {}
for one in TRAININGS:
    PLAN.setdefault(without_seed(one.name, one), []).append(one)


def is_result(row: Json, training: Training) -> bool:
    """Returns whether the plan has not changed since the row was written."""
    return all(row[field] == value for field, value in vars(training).items())


class Trained:
    """The trainings that have ended, by setting."""

    def __init__(self, rows: Iterable[Json]) -> None:
        known = {row["name"]: row for row in rows}
        self.rows: dict[str, Json] = {
            one.name: known[one.name]
            for one in TRAININGS
            if one.name in known and is_result(known[one.name], one)
        }

    @classmethod
    def read(cls, path: Path) -> Trained:
        """Reads long.json, which does not exist before the first training has ended."""
        return cls(json.loads(path.read_text())["trainings"] if path.exists() else ())

    def of(self, setting: str) -> list[Json]:
        """Returns the trainings of a setting, one per seed."""
        return [self.rows[one.name] for one in PLAN[setting] if one.name in self.rows]

    def baseline(self, setting: str) -> str:
        """Returns the setting without compression that this one is compared with."""
        planned = PLAN[setting][0]
        return without_seed(planned.baseline, planned)

    def pairs(self, setting: str, other: str = "") -> list[tuple[Json, Json]]:
        """Returns the trainings of two settings (`other`: the baseline if empty) by seed."""
        others = {row["seed"]: row for row in self.of(other or self.baseline(setting))}
        return [(row, others[row["seed"]]) for row in self.of(setting) if row["seed"] in others]

    def gap(self, setting: str, other: str = "") -> Gap | None:
        """Returns the difference of their accuracies; None if they share no seed."""
        pairs = self.pairs(setting, other)
        points = (100 * (mine["accuracy"] - theirs["accuracy"]) for mine, theirs in pairs)
        return Gap(tuple(points)) if pairs else None

    def gaps(self, settings: Iterable[str]) -> dict[str, Gap]:
        """Returns the gaps to the baseline of the settings that can be compared with it."""
        found = {setting: self.gap(setting) for setting in settings}
        return {setting: gap for setting, gap in found.items() if gap is not None}

    def mean(self, setting: str, figure: Callable[[Json, Json], float]) -> float:
        """Returns the mean of a figure of a training and its baseline; 0 without such a pair."""
        return mean([figure(mine, base) for mine, base in self.pairs(setting)] or [0])

    def fewer(self, setting: str) -> float:
        """Returns the bytes that a rank sends with fp32 / with this setting."""
        return self.mean(setting, lambda mine, base: base["bytes_sent"] / mine["bytes_sent"])

    def sends(self, setting: str, times_fewer: float) -> bool:
        """Returns whether a rank sends so many times fewer bytes, to one decimal."""
        return round(self.fewer(setting), 1) >= times_fewer

    def missing(self, settings: Iterable[str]) -> tuple[str, ...]:
        """Returns the commands that train what is missing: one per seed, with the baselines."""
        wanted = dict.fromkeys(name for one in settings for name in (self.baseline(one), one))
        left: dict[int, list[str]] = {}
        for setting in wanted:
            for training in PLAN[setting]:
                if training.name not in self.rows:
                    left.setdefault(training.seed, []).append(training.name)
        return tuple(f'make reproduce-long ONLY="{" ".join(left[seed])}"' for seed in sorted(left))
