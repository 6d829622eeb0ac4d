"""Claim: CNN gradients are strongly linearly correlated."""

from __future__ import annotations

from pathlib import Path

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import FAILS, HOLDS, IN_PART, Claim, Context, Json, Shown
from ..commands import RESNET9, VGG, recorded
from ..wording import percent
from . import slices

CHART = "gradiveq-drift.svg"


def measure(bench: Bench) -> Json:
    found: Json = {}
    for name, arguments in (("resnet9", RESNET9), ("vgg-small", VGG)):
        recording = bench.record(name, arguments)
        found[name] = {
            "spectra": bench.analyse(slices.spectra, recording),
            "drift": bench.analyse(slices.drift, recording),
        }
    return found


def best_order(orders: Json) -> str:
    """Returns the order that needs the fewest components for 90 % of the energy."""
    candidates = (name for name in orders if name != "shuffled")
    return min(candidates, key=lambda name: orders[name]["d90"])


def layer_line(network: str, row: Json) -> list[str]:
    orders = row["orders"]
    best = best_order(orders)
    cells = [
        f"{one['d90']}, {one['d99']}, {percent(one['lost'])}" if one else ""
        for one in (orders.get("paper"), orders[best], orders["shuffled"])
    ]
    cells[1] += f" ({best})"
    shape = " · ".join(str(side) for side in row["shape"])
    return [network, row["layer"], shape, str(row["slice"]), *cells]


def median_fraction(layers: list[Json], order: str, field: str) -> float:
    """Returns the components / K of the median layer; the order "best" differs by layer."""
    fractions = []
    for row in layers:
        chosen = best_order(row["orders"]) if order == "best" else order
        fractions.append(row["orders"][chosen][field] / row["slice"])
    middle: float = sorted(fractions)[len(fractions) // 2]
    return middle


def draw_drift(found: Json, path: Path) -> None:
    panels = []
    for network, parts in found.items():
        panel = Panel(network, "steps since the basis was learned", "energy outside the basis")
        for row in parts["drift"][-4:]:
            panel.lines[row["layer"]] = (row["steps"], row["old"])
        last = parts["drift"][-1]
        panel.lines[f"{last['layer']} (new basis)"] = (last["steps"], last["new"])
        panels.append(panel)
    draw(path, *panels)


def show(found: Json, context: Context) -> Shown:
    layers = [(network, row) for network, parts in found.items() for row in parts["spectra"]]
    convolutions = [row for _, row in layers if "paper" in row["orders"]]
    paper90 = median_fraction(convolutions, "paper", "d90")
    paper99 = median_fraction(convolutions, "paper", "d99")
    best90 = median_fraction(convolutions, "best", "d90")
    drifts = [row for parts in found.values() for row in parts["drift"]]
    grown = max(row["old"][-1] - row["new"][-1] for row in drifts)
    draw_drift(found, context.charts / CHART)
    header = ["network", "layer", "shape", "K", "paper: 90 %, 99 %, lost", "best", "shuffled"]
    text = f"""
GradiVeQ cuts a layer into slices of K elements and sends their components in a basis.
Each cell has three figures: the components that hold 90 % and 99 % of the energy of the mean gradient's slices (second half of the recorded steps),
and the energy that the next step loses in a basis of K/8 components, learned from the {slices.WINDOW} recorded steps before it.
*paper* cuts in the paper's order of the elements (filter fastest); *best* in the order (named) that needs the fewest components for 90 %.
*shuffled* cuts the same elements in random order, that is, without correlation.

{table(header, [layer_line(network, row) for network, row in layers])}

The basis drifts: at the end of the recording the old basis loses up to {100 * grown:.0f} percentage points of the energy more than a new one.
"""
    figure = (
        f"in the median convolution, {percent(paper90)} of the components hold 90 % of the energy "
        f"and {percent(paper99)} hold 99 %, in the paper's order of the elements; "
        f"in the best order {percent(best90)} hold 90 %"
    )
    verdict = HOLDS if paper99 <= 0.25 else IN_PART if paper90 <= 0.5 else FAILS
    return Shown(verdict, figure, text, (CHART,))


CLAIM = Claim(
    name="gradiveq-spectra",
    system="GradiVeQ",
    claim="the gradients of a CNN are strongly linearly correlated",
    commands=(recorded(RESNET9), recorded(VGG)),
    measure=measure,
    show=show,
    seconds=150,
    rule="""
The claim holds if a quarter of the components holds 99 % of the energy of the median convolution, in the paper's order of the elements.
It holds in part if half of the components holds 90 %.
""",
)
