"""Claim: no drop of accuracy at 4 times fewer bytes, about 1 point at 8 times fewer."""

from __future__ import annotations

from ..charts import draw
from ..claim import FAILS, HOLDS, IN_PART, NOT_YET, Claim, Context, Json, Shown
from ..commands import long_training
from ..noise import no_loss, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_charts import over_bytes
from ..training_table import training_table
from ..verdict import every
from ..wording import times

CHART = "sketch-accuracy.svg"
POINTS = {4: 0, 8: 1}  # claimed at most, by how many times fewer bytes
# A training per number of POINTS.
PAPER = ("resnet9-sketch-paper-4x", "resnet9-sketch-paper-8x")
OURS = ("resnet9-sketch-4x", "resnet9-sketch-8x")


def part(trained: Trained, setting: str, fewer: int) -> str:
    """Returns the verdict on one training; one that sends too many bytes can only refute."""
    verdict = no_loss(trained.gap(setting), POINTS[fewer])
    return verdict if trained.sends(setting, fewer) or verdict == FAILS else NOT_YET


def algorithm(trained: Trained, settings: tuple[str, ...]) -> str:
    return every(part(trained, setting, fewer) for setting, fewer in zip(settings, POINTS))


def judged(trained: Trained) -> str:
    paper, ours = algorithm(trained, PAPER), algorithm(trained, OURS)
    if paper in (HOLDS, IN_PART):
        return paper
    # Not the paper's algorithm, so it shows a part of the claim at most.
    return IN_PART if ours in (HOLDS, IN_PART) else FAILS if FAILS in (paper, ours) else NOT_YET


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    text = training_table(trained, (*OURS, *PAPER))
    text += context.quoted.table("sketch-10x", "sketch", "sketch-paper")
    gaps = trained.gaps((*OURS, *PAPER))
    if not gaps:
        return Shown(NOT_YET, UNTRAINED, text)
    lines = {"sketch": OURS, "sketch (paper)": PAPER, "fp32": ("resnet9-fp32",)}
    draw(context.charts / CHART, over_bytes(trained, "resnet9, 10 epochs", lines))
    parts = [
        f"{name} at {times(trained.fewer(setting))} fewer bytes {gaps[setting]}"
        for name, settings in (("our default", OURS), ("the paper's algorithm", PAPER))
        for setting in settings
        if setting in gaps
    ]
    figure = f"accuracy against fp32: {', '.join(parts)}{seeds_note(gaps.values())}"
    return Shown(judged(trained), figure, text, (CHART,))


CLAIM = Claim(
    name="sketch-accuracy",
    system="Sketched-SGD",
    claim="a residual network on CIFAR-10 loses no accuracy at 4 times fewer bytes and about 1 point at 8 times fewer",
    commands=(long_training("sketch:density=D"), long_training("sketch:preset=paper,density=D")),
    show=show,
    trainings=(*OURS, *PAPER),
    rule="""
The claim has two parts.
A training that sends at least 4.0 times fewer bytes than fp32 loses no more than noise.
A training that sends at least 8.0 times fewer bytes loses no more than 1 point plus the noise.
The claim holds if both parts hold for the paper's algorithm.
It does not hold if all of the trainings that have ended, and send few enough bytes, clearly lose more than their part allows.
Otherwise it holds in part; our default alone can show no more than this, because it is not the paper's algorithm.
A training that sends more bytes than its part allows can refute the part, but not show it.
""",
)
