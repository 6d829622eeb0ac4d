"""Claim: DQSG is SGD with independent, bounded, uniform noise."""

from __future__ import annotations

from pathlib import Path

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import HOLDS, IN_PART, Claim, Context, Json, Shown
from ..commands import RESNET9, recorded
from ..recording import SMALLEST
from ..wording import span
from .rounding import BINS, rounding_errors

CHART = "dqsg-error.svg"
QUANTIZERS = {"dqsg": "dqsg:collective=gather,levels=7", "qsgd": "qsgd:collective=gather,bits=4"}


def measure(bench: Bench) -> Json:
    recording = bench.record("resnet9", RESNET9)
    return {
        name: bench.analyse(rounding_errors, recording, spec, 6)
        for name, spec in QUANTIZERS.items()
    }


def draw_bins(relative: dict[str, list[float]], path: Path) -> None:
    places = [(low + high) / 2 for low, high in zip(BINS, BINS[1:])]
    panel = Panel(
        title="error by the size of the element",
        x="|w| in step sizes of dqsg",
        y="variance / variance of all errors",
        x_scale="log",
    )
    for name, values in relative.items():
        panel.lines[name] = (places, values)
    draw(path, panel)


def show(found: Json, context: Context) -> Shown:
    dqsg, qsgd = found["dqsg"], found["qsgd"]
    bound = 1.36 / dqsg["elements"] ** 0.5  # the Kolmogorov-Smirnov test's at 5 %
    noise = 3 / dqsg["elements"] ** 0.5  # three standard deviations of a correlation
    relative = {
        name: [bin["variance"] / one["variance"] for bin in one["bins"]]
        for name, one in found.items()
    }
    draw_bins(relative, context.charts / CHART)
    zero = f"0 ± {noise:.4f}"
    correlations = [
        [name, zero, f"{dqsg[field]:.5f}", f"{qsgd[field]:.5f}"]
        for name, field in (
            ("correlation of error and element", "correlation"),
            ("correlation of their magnitudes", "size_correlation"),
        )
    ]
    lines = [
        ["largest error, in κ", "0.5", f"{dqsg['largest']:.5f}", ""],
        ["variance of the error, in κ²", "1/12 = 0.08333", f"{dqsg['variance']:.5f}", ""],
        [
            "Kolmogorov-Smirnov distance to the uniform distribution",
            f"below {bound:.5f} (5 %)",
            f"{dqsg['ks']:.5f}",
            "",
        ],
        *correlations,
        [
            "variance by magnitude of the element / variance of all",
            "1",
            *(span(values, 2) for values in relative.values()),
        ],
    ]
    text = f"""
κ is the step size of `dqsg`, the distance between two of its 7 levels.
The Python codec (`thinreduce.codec`) encoded and decoded {dqsg["elements"]:,} elements: 6 recorded steps of `resnet9`, rank 0, layers of at least {SMALLEST:,} elements.

{table(["", "expected", "`dqsg`", "`qsgd:bits=4`, for comparison"], lines)}
"""
    holds = (
        dqsg["largest"] < 0.501
        and dqsg["ks"] < bound
        and abs(dqsg["correlation"]) < noise
        and abs(dqsg["size_correlation"]) < noise
    )
    figure = (
        f"largest error {dqsg['largest']:.4f} step sizes, distance to the uniform distribution "
        f"{dqsg['ks']:.5f} (5 % bound {bound:.5f}), correlation of error and element "
        f"{dqsg['correlation']:.5f}, of their magnitudes {dqsg['size_correlation']:.5f} "
        f"(qsgd {qsgd['size_correlation']:.2f})"
    )
    return Shown(HOLDS if holds else IN_PART, figure, text, (CHART,))


CLAIM = Claim(
    name="dqsg-noise",
    system="DQSG",
    claim="training with DQSG is SGD with independent, bounded, uniform noise",
    commands=(
        recorded(RESNET9),
        'thinreduce.codec.decode(thinreduce.codec.encode(layer, "dqsg:collective=gather,levels=7"))',
    ),
    measure=measure,
    show=show,
    seconds=20,
    rule="""
The claim holds if no error exceeds κ/2, a Kolmogorov-Smirnov test at 5 % finds the errors uniform,
and both correlations are within three standard deviations of 0.
The layers of a step share the seed of the dither, so their errors are not fully independent,
and the test at 5 % is weaker than the number of elements suggests.
""",
)
