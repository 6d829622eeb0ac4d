"""Claim: Sketched-SGD converges as SGD with top-k does."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import FAILS, HOLDS, IN_PART, Claim, Context, Json, Shown
from ..commands import ON_RECORDED, RESNET9_EVERY_STEP, recorded
from ..wording import code, span

CHART = "sketch-topk-distance.svg"
DENSITIES = (0.01, 0.05, 0.12)
TRUE, OURS, PAPER, LOCAL = "true global top-k", "sketch", "sketch (paper)", "topk, local"


def specs(density: float, elements: int) -> dict[str, str]:
    k = int(density * elements)
    return {
        TRUE: f"sketch:k={k},candidates=1000,nominees=0",
        OURS: f"sketch:k={k}",
        PAPER: f"sketch:k={k},nominees=0,candidates=2,values=f32",
        LOCAL: f"topk:density={density}",
    }


def measure(bench: Bench) -> Json:
    recording = bench.record("resnet9-dense", RESNET9_EVERY_STEP)
    elements = sum(bucket["elements"] for bucket in recording.buckets)
    found: Json = {}
    for density in DENSITIES:
        asked = specs(density, elements)
        runs = bench.codec(recording, *asked.values())
        found[str(density)] = {
            name: {"spec": spec, **{field: one[field] for field in ("ratio", "sum_nmse", "nmse")}}
            for (name, spec), one in zip(asked.items(), runs)
        }
    return found


def show(found: Json, context: Context) -> Shown:
    panel = Panel(
        title="resnet9, 60 recorded steps",
        x="density k/n",
        y="error of the sum of all steps",
        x_scale="log",
        y_scale="log",
    )
    lines = []
    distances: dict[str, list[float]] = {}  # held back / held back by true top-k
    for density, runs in found.items():
        for name, one in runs.items():
            distance = one["sum_nmse"] / runs[TRUE]["sum_nmse"]
            distances.setdefault(name, []).append(distance)
            panel.add(name, float(density), one["sum_nmse"])
            figures = [f"1/{one['ratio']:.1f}", f"{one['sum_nmse']:.4f}", f"{distance:.2f}"]
            lines.append([density, name, code(one["spec"]), *figures])
    draw(context.charts / CHART, panel)
    header = ["density", "selection", "spec", "payload", "held back", "/ true top-k"]
    text = f"""
Recorded gradients of `resnet9`, all with error feedback and the same k.
*held back* is the error of the sum over all steps, relative to its energy: the part that is still in the residuals.
With all elements as candidates the second round of `sketch` selects the true global top-k.
Local top-k applies the elements that any of the 4 ranks selects, up to 4k per step, and can therefore hold back less.

{table(header, lines)}
"""
    figure = "energy held back / that of true global top-k: " + ", ".join(
        f"{name} {span(values, 1)}" for name, values in distances.items() if name != TRUE
    )
    ours, paper = max(distances[OURS]), max(distances[PAPER])
    verdict = HOLDS if paper < 1.5 else IN_PART if ours < 3 else FAILS
    return Shown(verdict, figure, text, (CHART,))


CLAIM = Claim(
    name="sketch-topk-distance",
    system="Sketched-SGD",
    claim="Sketched-SGD converges as SGD with true top-k does",
    commands=(recorded(RESNET9_EVERY_STEP), ON_RECORDED),
    measure=measure,
    show=show,
    seconds=30,
    rule="""
The claim holds if the paper's algorithm holds back less than 1.5 times the energy that true top-k holds back.
It holds in part if our default holds back less than 3 times as much.
""",
)
