"""Charts of trainings: accuracy over steps and over bytes. Of several seeds the means are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from .charts import Panel
from .trained import Trained


def over_steps(trained: Trained, title: str, settings: Mapping[str, str]) -> Panel:
    """Returns the curves of the settings that are trained, by the name of their line."""
    panel = Panel(title, "step", "accuracy on test images, %")
    for name, setting in settings.items():
        # The last evaluation is of all test images.
        for points in zip(*(row["curve"] for row in trained.of(setting))):
            panel.add(name, points[0][0], 100 * mean(accuracy for _, accuracy, _ in points))
    return panel


def over_bytes(trained: Trained, title: str, lines: Mapping[str, Sequence[str]]) -> Panel:
    """Returns accuracies over bytes: a line per name, a point per setting that is trained."""
    panel = Panel(title, "times fewer bytes sent than fp32", "accuracy, %", x_scale="log")
    for name, settings in lines.items():
        for setting in settings:
            if trained.pairs(setting):
                accuracy = trained.mean(setting, lambda mine, _: mine["accuracy"])
                panel.add(name, trained.fewer(setting), 100 * accuracy)
    return panel
