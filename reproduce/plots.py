"""Draws the charts of the results page as SVG."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from . import settings as plan
from .measures import Row, smooth
from .runs import Json

plt.rcParams.update(
    {
        "svg.hashsalt": "thinreduce",  # the same data gives the same file
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }
)

# One colour per method in all charts; fp32 is black.
COLOURS = {
    "fp32": "#000000", "bf16": "#7f7f7f", "gradiveq": "#0072b2", "gradiveq+dqsg": "#56b4e9",
    "fft": "#e69f00", "variance": "#cc79a7", "dqsg": "#009e73", "ndqsg": "#7cc36e",
    "sketch": "#d55e00", "topk": "#8c564b", "qsgd": "#9467bd", "terngrad": "#bcbd22",
    "powersgd": "#17becf",
}  # fmt: skip
MARKERS = "osD^v<>pP*Xhd"


def marker(method: str) -> str:
    return MARKERS[list(COLOURS).index(method) % len(MARKERS)]


def line_style(setting: plan.Setting) -> str:
    if setting.optimizer == "adam":
        return "--"
    return ":" if setting.kind == "ours" else "-"


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def accuracy_over_time(rows: list[Row], path: Path) -> None:
    figure, charts = plt.subplots(1, len(plan.LINKS), figsize=(11, 4), sharey=True)
    for chart, link in zip(charts, plan.LINKS):
        for row in rows:
            if row.setting.kind == "paper":
                continue
            seconds = [step * row.links[link].step_seconds for step, _ in row.curve]
            chart.plot(
                seconds,
                [100 * accuracy for _, accuracy in smooth(row.curve)],
                color=COLOURS[row.setting.method],
                linestyle=line_style(row.setting),
                linewidth=2 if row.setting.method == "fp32" else 1.2,
                label=row.setting.name,
            )
        chart.set(title=f"link {link}", xlabel="seconds of training", xscale="log", ylim=(30, None))
    charts[0].set_ylabel("test accuracy, %")
    charts[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    save(figure, path)


def accuracy_and_ratio(rows: list[Row], path: Path) -> None:
    figure, chart = plt.subplots(figsize=(7.5, 4.2))
    for row in rows:
        paper = row.setting.kind == "paper"
        chart.scatter(
            row.fewer,
            row.points,
            s=45,
            marker=marker(row.setting.method),
            facecolors="none" if paper else COLOURS[row.setting.method],
            edgecolors=COLOURS[row.setting.method],
        )
        # The label goes below the point if the line at zero, or the label of the default, would
        # cross it above.
        below = -1.5 < row.points < 0 and row.setting.kind != "default"
        place = (4, -10 if below else 4)
        chart.annotate(
            row.setting.name, (row.fewer, row.points), place, textcoords="offset points", fontsize=7
        )
    chart.axhline(0, color="black", linewidth=1)
    chart.set(
        xscale="log",
        xlabel="times fewer bytes sent than fp32",
        ylabel="points of accuracy against fp32",
    )
    chart.set_title("filled: ours; open: the paper's setting", fontsize=9)
    save(figure, path)


def split_steps(
    path: Path, names: list[str], panels: dict[str, tuple[list[float], list[float]]]
) -> None:
    """Draws the milliseconds of a step, per panel: computation, and the exchange after it."""
    height = max(5, 0.22 * len(names))
    figure, charts = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), height), sharey=True, squeeze=False
    )
    for chart, (title, (compute, exposed)) in zip(charts[0], panels.items()):
        chart.barh(names, compute, color="#0072b2", label="compute")
        chart.barh(
            names,
            exposed,
            left=compute,
            color="#d55e00",
            label="exchange that backward did not hide",
        )
        chart.set(title=f"link {title}", xlabel="milliseconds of a compressed step")
    charts[0][0].invert_yaxis()
    # Between the long bars.
    charts[0][0].legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.68))
    save(figure, path)


def step_times(rows: list[Row], path: Path) -> None:
    """Splits the time of a step into computation and the wait for the exchange after backward."""
    panels = {
        link: (
            [1e3 * row.links[link].stages["compute"] for row in rows],
            [1e3 * row.links[link].stages["exposed"] for row in rows],
        )
        for link in plan.LINKS
    }
    split_steps(path, [row.setting.name for row in rows], panels)


def rate_distortion(curves: dict[str, list[Json]], path: Path) -> None:
    figure, charts = plt.subplots(1, 2, figsize=(10, 4.5))
    panels = (("nmse", "one step"), ("sum_nmse", "sum of all recorded steps"))
    for chart, (key, title) in zip(charts, panels):
        for family, points in curves.items():
            ordered = sorted(points, key=lambda point: point["bits"])
            chart.plot(
                [point["bits"] for point in ordered],
                [point[key] for point in ordered],
                marker=marker(family),
                markersize=4,
                linestyle=":" if family in plan.KEEPS_RESIDUAL else "-",
                color=COLOURS[family],
                label=family,
            )
        chart.set(xscale="log", yscale="log", xlabel="bits per element", title=title)
    charts[0].set_ylabel("squared error / energy of the mean")
    charts[0].legend(fontsize=7, ncols=2)
    save(figure, path)


def scaling(curves: dict[str, list[Json]], path: Path) -> None:
    figure, charts = plt.subplots(1, 2, figsize=(10, 4.5))
    for method, points in curves.items():
        ranks = [point["ranks"] for point in points]
        look = {
            "marker": marker(method),
            "markersize": 4,
            "color": COLOURS[method],
            "label": method,
        }
        charts[0].plot(ranks, [point["seconds"] for point in points], **look)
        charts[1].plot(ranks, [point["bytes_sent"] / 1e6 for point in points], **look)
        charts[1].plot(
            ranks, [point["formula_bytes"] / 1e6 for point in points], ":", color=COLOURS[method]
        )
    for chart in charts:
        chart.set(xscale="log", yscale="log", xlabel="ranks", xticks=plan.SCALING_RANKS)
        chart.set_xticklabels([str(ranks) for ranks in plan.SCALING_RANKS])
        chart.minorticks_off()
    charts[0].set(ylabel="seconds", title="time of a reduce")
    charts[1].set(ylabel="MB", title="sent by a rank; dotted: the formula")
    charts[0].legend(fontsize=7, ncols=2)
    save(figure, path)
