"""Claim: a cost model predicts the speed-up."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import FAILS, HOLDS, IN_PART, Claim, Context, Json, Shown
from ..commands import LINKS, virtual
from ..wording import code, span, times

CHART = "variance-cost.svg"
DEFAULT, DRAWN = "variance:collective=gather", "variance:collective=gather,full=0,alpha=0.1"
SPECS = (DEFAULT, DRAWN)
RANKS = (2, 4, 8, 16)
CLOSE = (0.8, 1.25)  # measured / predicted


def measure(bench: Bench) -> Json:
    arguments = ("--floats", "1000000", "--steps", "3")
    return {
        f"{link} {ranks}": bench.reduce(ranks, link, *arguments, methods=SPECS)
        for link in LINKS
        for ranks in RANKS
    }


def predictions(one: Json, link: str, ranks: int) -> tuple[float, float]:
    """Returns the speed-up that follows from bytes and latency, and the one with the work added."""
    bits_per_second, latency = LINKS[link]
    fp32_bits = 2 * (ranks - 1) / ranks * 32 * one["floats"]
    fp32 = fp32_bits / bits_per_second + 2 * latency
    gather = 8 * one["bytes_sent"] / bits_per_second + latency
    work = one["stages"]["encode"] + one["stages"]["decode"]
    return fp32 / gather, fp32 / (gather + work)


def show(found: Json, context: Context) -> Shown:
    lines, relative = [], []
    panels = {
        link: Panel(link, "ranks", "times faster than fp32", x_scale="log", y_scale="log")
        for link in LINKS
    }
    for key, runs in found.items():
        link, ranks = key.split(" ")
        for spec, one in zip(SPECS, runs):
            predicted, with_work = predictions(one, link, int(ranks))
            measured = one["speedup"]
            relative.append(measured / predicted)
            speedups = [times(value) for value in (predicted, with_work, measured)]
            lines.append([link, ranks, code(spec), f"1/{one['ratio']:.0f}", *speedups])
            if spec == DRAWN:
                panels[link].add("variance (predicted)", float(ranks), predicted)
                panels[link].add("variance, measured", float(ranks), measured)
    draw(context.charts / CHART, *panels.values())
    header = ["link", "ranks", "spec", "payload", "predicted", "with work", "measured"]
    text = f"""
1 M floats with ResNet-50's layers, virtual time; second moments are synthetic, so the payload of the default is smaller than in a training.
*payload* is relative to the gradient; the last three columns are speed-ups over fp32.
*predicted* follows from bytes, bandwidth and latency alone, as in the paper: fp32 sends 2 (N − 1)/N gradients per rank, a gather N − 1 payloads.
*with work* adds the measured time of encoding and decoding.

{table(header, lines)}
"""
    close = sum(CLOSE[0] <= one <= CLOSE[1] for one in relative)
    figure = (
        f"measured speed-up / speed-up predicted from the bytes: {span(relative, 2)} over "
        f"N = 2 … 16 and two links; between 0.8 and 1.25 in {close} of {len(relative)} cases"
    )
    verdict = HOLDS if close == len(relative) else IN_PART if close else FAILS
    return Shown(verdict, figure, text, (CHART,))


CLAIM = Claim(
    name="variance-cost-model",
    system="Variance",
    claim="a cost model of bytes, bandwidth and latency predicts the speed-up",
    commands=(virtual(1000000, f"--method {DEFAULT}"),),
    measure=measure,
    show=show,
    seconds=30,
    rule="""
The claim holds if measured / predicted is between 0.8 and 1.25 in all cases, and in part if it is in some.
""",
)
