"""Verdicts on differences of accuracy that take the noise of the seed into account."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import mean

from .verdict import FAILS, HOLDS, IN_PART, NOT_YET

SEED_NOISE = 0.7  # percentage points between two trainings that differ in their seed only
SEEDS = 3  # that a claim needs to hold in full
CLEARLY = 2  # times the noise, from which on a difference is clear


@dataclass(frozen=True)
class Gap:
    """Accuracy of trainings minus that of others with the same seeds, in percentage points."""

    by_seed: tuple[float, ...]

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        return round(mean(self.by_seed), 6)

    @property
    def noise(self) -> float:
        return SEED_NOISE / sqrt(self.seeds)

    @property
    def is_noise(self) -> bool:
        return abs(self.mean) <= self.noise

    @property
    def is_clear(self) -> bool:
        return abs(self.mean) > CLEARLY * self.noise

    def __str__(self) -> str:
        doubt = "" if self.is_clear else " (not clearly more than noise)"
        return f"{self.mean:+.1f} points{' (noise)' if self.is_noise else doubt}"


def graded(excess: float, tolerance: float, seeds: int) -> str:
    """Returns the verdict on a figure that exceeds what is claimed by `excess`."""
    if excess > CLEARLY * tolerance:
        return FAILS
    return HOLDS if excess <= tolerance and seeds >= SEEDS else IN_PART


def no_loss(gap: Gap | None, allowed: float = 0) -> str:
    """Returns the verdict on "loses at most `allowed` points"."""
    return NOT_YET if gap is None else graded(-gap.mean - allowed, gap.noise, gap.seeds)


def seeds_note(gaps: Iterable[Gap]) -> str:
    """Returns the end of a sentence that says how few seeds were trained."""
    fewest = min((gap.seeds for gap in gaps), default=SEEDS)
    return {1: "; one seed was trained", 2: "; two seeds were trained"}.get(fewest, "")
