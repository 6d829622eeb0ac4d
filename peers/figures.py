"""Computes the figures of docs/peers.md from the results."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from . import contenders as plan
from .contenders import COMPUTE, DDP, Contender, Part
from .store import Json, Store

Curve = list[tuple[float, float]]  # step, loss


def loss_at(curve: Curve, step: float) -> float:
    """Returns the loss at a step, on the line between two evaluations."""
    for (before, high), (after, low) in zip(curve, curve[1:]):
        if before <= step <= after:
            return high + (low - high) * (step - before) / (after - before)
    raise ValueError(f"the curve ends at step {curve[-1][0]}, before step {step:g}")


def steps_to(curve: Curve, target: float) -> float | None:
    """Returns the steps until the loss is the target, on the line between two evaluations."""
    for (before, high), (after, low) in zip(curve, curve[1:]):
        if low <= target:
            return (
                after
                if high <= target
                else before + (after - before) * (high - target) / (high - low)
            )
    return None


@dataclass(frozen=True)
class OverLink:
    """A contender over one link; times in seconds."""

    step: float
    bytes_sent: float  # per step, by the busiest rank
    utilisation: float | None  # fraction of the step that computing alone takes
    memory_mb: float
    busy: bool  # whether other programs ran, so that the times are too long
    to_target: list[float]  # one per seed that reached the target
    missed: int  # seeds that did not reach it

    @property
    def time(self) -> float | None:
        """The mean time to the target, if all seeds reached it."""
        return mean(self.to_target) if self.to_target and not self.missed else None

    @property
    def spread(self) -> float:
        return max(self.to_target) - min(self.to_target) if self.to_target else 0.0


@dataclass(frozen=True)
class Row:
    contender: Contender
    curves: dict[int, Curve]  # by seed; of a contender that follows the link: over the first link
    steps: list[float | None]  # to the target, per seed
    links: dict[str, OverLink]
    errors: list[str]
    chosen: dict[str, list[str]]  # by link, what `auto` chose for its buckets


@dataclass(frozen=True)
class Figures:
    workload: str
    target: float | None  # loss
    compute: float | None  # seconds of a step without an exchange
    rows: list[Row]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.contender.name == name), None)

    def busy(self, link: str) -> bool:
        """Returns whether other programs made times over the link too long."""
        return any(link in row.links and row.links[link].busy for row in self.rows)

    def baseline(self) -> Row | None:
        rows = [self.row(name) for name in plan.BASELINES]
        return next((row for row in rows if row and row.links), None)

    def ranking(self, link: str) -> list[tuple[float, Row]]:
        """Returns the contenders that reach the target over the link, the fastest first."""
        times = [(row.links[link].time, row) for row in self.rows if link in row.links]
        reached = [(time, row) for time, row in times if time is not None]
        return sorted(reached, key=lambda one: one[0])


def curves_of(store: Store, workload: str, one: Contender, link: str) -> dict[int, Curve]:
    found = {
        seed: store.found(Part(workload, one, link if one.follows_link else "", seed))
        for seed in plan.SEEDS
    }
    return {
        seed: [(step, loss) for step, loss in kept["curve"]]
        for seed, kept in found.items()
        if kept and "curve" in kept
    }


def target_of(store: Store, workload: str) -> float | None:
    """Returns the loss of DDP at 80 % of its training, as the mean over its seeds."""
    curves = curves_of(store, workload, DDP, "").values()
    return mean(loss_at(one, plan.TARGET_AT * DDP.steps) for one in curves) if curves else None


def over_link(kept: Json, compute: float | None, steps: list[float | None]) -> OverLink:
    step = kept["step_seconds"]
    return OverLink(
        step=step,
        bytes_sent=kept["bytes_per_step"],
        utilisation=compute / step if compute else None,
        memory_mb=kept["memory_mb"],
        busy=kept.get("other_cores", 0) > plan.BUSY,
        to_target=[one * step for one in steps if one is not None],
        missed=sum(one is None for one in steps),
    )


def row_of(
    store: Store, workload: str, one: Contender, target: float | None, compute: float | None
) -> Row:
    links, chosen = {}, {}
    # Without its package a contender fails in the same way everywhere.
    failed = store.content["packages"].get(one.package, {}).get("error")
    errors: list[str] = [failed] if failed else []

    def steps_of(curves: dict[int, Curve]) -> list[float | None]:
        return [] if target is None else [steps_to(curve, target) for curve in curves.values()]

    trained = {link: curves_of(store, workload, one, link) for link in plan.LINKS}
    for link, curves in trained.items():
        kept = store.found(Part(workload, one, link))
        if kept and "error" in kept:
            errors.append(kept["error"])
        elif kept:
            links[link] = over_link(kept, compute, steps_of(curves))
            if kept["notes"].get("chosen"):
                chosen[link] = kept["notes"]["chosen"]
    for seed in plan.SEEDS:
        for link in plan.LINKS if one.follows_link else ("",):
            kept = store.found(Part(workload, one, link, seed))
            errors += [kept["error"]] if kept and "error" in kept else []
    curves = next((curves for curves in trained.values() if curves), {})
    return Row(one, curves, steps_of(curves), links, list(dict.fromkeys(errors)), chosen)


def figures(store: Store, workload: str) -> Figures:
    target = target_of(store, workload)
    alone = store.found(Part(workload, COMPUTE, "loopback")) or {}
    compute = alone.get("step_seconds")
    ordered = sorted(plan.CONTENDERS, key=lambda one: plan.GROUPS.index(one.group))
    rows = [row_of(store, workload, one, target, compute) for one in ordered]
    return Figures(workload, target, compute, rows)
