"""Claim: training converges when the compression ratio shrinks over time."""

from __future__ import annotations

from ..charts import draw
from ..claim import HOLDS, IN_PART, NOT_YET, Claim, Context, Json, Shown
from ..commands import long_training
from ..noise import no_loss, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_charts import over_steps
from ..training_table import training_table
from ..verdict import every

CHART = "fft-diminishing.svg"
CONSTANT, AUTO = "resnet9-fft-off", "resnet9-fft-auto"
SCHEDULES = {
    "linear": "resnet9-fft-linear",
    "cosine": "resnet9-fft-cosine",
    "step": "resnet9-fft-step",
}
SETTINGS = (CONSTANT, *SCHEDULES.values(), AUTO)


def part(trained: Trained, schedule: str) -> str:
    """Returns the verdict on one schedule."""
    verdict = no_loss(trained.gap(schedule))
    above = trained.gap(schedule, CONSTANT)
    is_above = above is not None and above.mean > above.noise
    return IN_PART if verdict == HOLDS and not is_above else verdict


def above_constant(trained: Trained) -> str:
    """Says how far each schedule ends above constant θ."""
    found = {name: trained.gap(setting, CONSTANT) for name, setting in SCHEDULES.items()}
    parts = [f"{name} {gap}" for name, gap in found.items() if gap is not None]
    return f"; against constant θ: {', '.join(parts)}" if parts else ""


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    text = training_table(trained, SETTINGS)
    gaps = trained.gaps(SETTINGS)
    if not gaps:
        return Shown(NOT_YET, UNTRAINED, text)
    names = {"constant θ": CONSTANT, **SCHEDULES, "θ = auto": AUTO}
    panel = over_steps(trained, "resnet9, fft:feedback=off", {"fp32": "resnet9-fp32", **names})
    draw(context.charts / CHART, panel)
    parts = [f"{name} {gaps[setting]}" for name, setting in names.items() if setting in gaps]
    figure = f"accuracy against fp32: {', '.join(parts)}{above_constant(trained)}"
    verdict = every(part(trained, schedule) for schedule in SCHEDULES.values())
    return Shown(verdict, figure + seeds_note(gaps.values()), text, (CHART,))


CLAIM = Claim(
    name="fft-diminishing",
    system="FFT",
    claim="training converges when the fraction θ that is dropped shrinks over time",
    commands=(long_training("fft:feedback=off,schedule=linear,steps=3900"),),
    show=show,
    trainings=SETTINGS,
    rule="""
A schedule holds if its training ends less than the noise below fp32, and above constant θ (0.85, without feedback) by more than noise.
The claim holds if all three schedules (linear, cosine, step) hold.
It does not hold if each of those that are trained clearly loses against fp32.
Otherwise it holds in part: for some schedules only, or without a difference to constant θ that exceeds noise.
`theta=auto`, which follows the energy and not the step, is only compared.
""",
)
