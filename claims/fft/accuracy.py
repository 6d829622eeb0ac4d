"""Claim: no loss of accuracy or convergence speed."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import Claim, Context, Json, Shown
from ..commands import ON_RECORDED, RESNET9, VGG, long_training, recorded
from ..training_table import training_table
from ..verdict import every
from ..wording import percent
from .convergence import DECIDING, SETTINGS, converges, curves, result

CHART, CURVES = "fft-beside-topk.svg", "fft-accuracy.svg"
KEPT = (0.5, 0.3, 0.15, 0.05, 0.01)


def specs(family: str, feedback: str) -> tuple[str, ...]:
    if family == "fft":
        return tuple(f"fft:theta={1 - kept:.2f},feedback={feedback}" for kept in KEPT)
    return tuple(f"topk:density={kept},feedback={feedback}" for kept in KEPT)


def measure(bench: Bench) -> Json:
    """Keeps, per network, family and feedback: error of a step, error of the sum, ratio."""
    found: Json = {}
    for name, arguments in (("resnet9", RESNET9), ("vgg-small", VGG)):
        recording = bench.record(name, arguments)
        found[name] = {}
        for feedback in ("off", "on"):
            for family in ("fft", "topk"):
                runs = bench.codec(recording, *specs(family, feedback))
                found[name][f"{family} {feedback}"] = [
                    [one["nmse"], one["sum_nmse"], one["ratio"]] for one in runs
                ]
    return found


def panel(network: str, runs: Json) -> Panel:
    kept = list(KEPT)
    drawn = Panel(
        title=f"{network}, no feedback",
        x="fraction kept",
        y="squared error of a step / energy",
        x_scale="log",
        y_scale="log",
    )
    for family in ("fft", "topk"):
        drawn.lines[family] = (kept, [one[0] for one in runs[f"{family} off"]])
    drawn.lines["random-k (expected)"] = (kept, [1 - one for one in kept])
    return drawn


def lines(network: str, runs: Json) -> list[list[str]]:
    found = []
    for i, kept in enumerate(KEPT):
        steps = [runs[f"{family} off"][i] for family in ("fft", "topk")]
        sums = [runs[f"{family} on"][i][1] for family in ("fft", "topk")]
        found.append(
            [
                network,
                percent(kept),
                *(f"{error:.3f}, 1/{ratio:.1f}" for error, _, ratio in steps),
                f"{1 - kept:.2f}",
                *(f"{error:.4f}" for error in sums),
            ]
        )
    return found


def on_recorded(found: Json) -> str:
    """Returns the text on the recorded gradients."""
    header = ["network", "kept", "fft: error, payload", "topk: error, payload", "random-k: error"]
    header += ["fft with feedback: error of the sum", "topk with feedback: error of the sum"]
    return f"""
Recorded gradients; `fft` keeps the same fraction of coefficients (in 10 bits) as `topk` keeps of elements.
Without feedback: the error of a step's mean, and the payload relative to the gradient.
With feedback: the error of the sum over all recorded steps, in which a value that arrives late is no error.
*random-k* keeps elements at random, unscaled: its expected error is the fraction that it drops (the project has no such method).

{table(header, [line for network, runs in found.items() for line in lines(network, runs)])}
"""


def wins(found: Json) -> str:
    """Says how often `fft` has less error than top-k."""
    less = [
        fft[0] < topk[0]
        for runs in found.values()
        for fft, topk in zip(runs["fft off"], runs["topk off"])
    ]
    return (
        f"with the same fraction kept `fft` has less error than top-k in {sum(less)} of "
        f"{len(less)} cases"
    )


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    charts: tuple[str, ...] = ()
    figure, text = result(trained), ""
    if found:
        draw(context.charts / CHART, *(panel(network, runs) for network, runs in found.items()))
        charts = (CHART,)
        figure, text = f"{figure}; {wins(found)}", on_recorded(found)
    text += training_table(trained, SETTINGS)
    if trained.gaps(SETTINGS):
        draw(context.charts / CURVES, *curves(trained))
        charts = (*charts, CURVES)
    text += context.quoted.table("fft", "fft-paper")
    return Shown(every(converges(trained, setting) for setting in DECIDING), figure, text, charts)


CLAIM = Claim(
    name="fft-accuracy",
    system="FFT",
    claim="training loses neither accuracy nor convergence speed",
    commands=(recorded(RESNET9), ON_RECORDED, long_training("fft:theta=0.85")),
    measure=measure,
    show=show,
    seconds=60,
    trainings=SETTINGS,
    rule="""
Two trainings with θ = 0.85 decide: our default, and `fft` without feedback, as in the paper.
A training loses no accuracy if it ends less than the noise below fp32.
It loses no convergence speed if it reaches 95 % of fp32's final accuracy at most a tenth of the steps later, which is one evaluation;
more than two tenths later is clearly slower.
The claim holds if both trainings lose neither, and does not hold if each of those that ended clearly loses one of the two.
Otherwise it holds in part.
θ = 0.95 and top-k are only compared.
""",
)
