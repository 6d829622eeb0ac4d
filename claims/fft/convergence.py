"""What the trainings say on accuracy and convergence speed."""

from __future__ import annotations

from reproduce.measures import LEVEL, first_step_at
from reproduce.runs import Json

from ..charts import Panel
from ..claim import NOT_YET
from ..noise import graded, no_loss, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_charts import over_steps
from ..verdict import worst
from ..wording import percent

# θ = 0.85, as in the paper; the others are compared.
OURS, OFF = "resnet9-fft", "resnet9-fft-off"
DECIDING = {OURS: "our default", OFF: "without feedback"}
HIGH = "resnet9-fft-0.95"
SETTINGS = (*DECIDING, HIGH, "resnet9-topk-0.15", "resnet9-topk-0.05")
TOLERANCE = 0.1  # as a fraction of the training: one of its ten evaluations


def lag(mine: Json, base: Json) -> float:
    """Returns the steps by which `mine` is later at LEVEL of the final accuracy of `base`, as a
    fraction of the training. One that does not reach it counts as if it did in its last step."""

    def step(row: Json) -> int:
        curve = [(at, accuracy) for at, accuracy, _ in row["curve"]]
        return first_step_at(curve, LEVEL * base["accuracy"]) or row["steps"]

    return (step(mine) - step(base)) / float(base["steps"])


def converges(trained: Trained, setting: str) -> str:
    """Returns the verdict on "loses neither accuracy nor convergence speed"."""
    gap = trained.gap(setting)
    if gap is None:
        return NOT_YET
    speed = graded(round(trained.mean(setting, lag), 6), TOLERANCE, gap.seeds)
    return worst([no_loss(gap), speed])


def result(trained: Trained) -> str:
    """Says what the trainings that decide have found."""
    gaps = trained.gaps(DECIDING)
    if not gaps:
        return UNTRAINED
    parts = [
        f"{DECIDING[setting]} {gap}, at {percent(LEVEL)} of fp32's accuracy "
        f"{100 * trained.mean(setting, lag):+.0f} % of the steps later"
        for setting, gap in gaps.items()
    ]
    return f"θ = 0.85 against fp32: {'; '.join(parts)}{seeds_note(gaps.values())}"


def curves(trained: Trained) -> list[Panel]:
    """Returns the accuracies over the steps, beside top-k that keeps as much."""
    panels = {
        "15": {"fft": OURS, "fft (no feedback)": OFF, "topk": "resnet9-topk-0.15"},
        "5": {"fft": HIGH, "topk": "resnet9-topk-0.05"},
    }
    return [
        over_steps(trained, f"resnet9, {kept} % kept", {"fp32": "resnet9-fp32", **settings})
        for kept, settings in panels.items()
    ]
