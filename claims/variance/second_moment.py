"""Claim: the variance comes at negligible additional cost."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..claim import FAILS, HOLDS, Claim, Context, Json, Shown
from ..wording import milliseconds, percent

MODELS = ("resnet9", "cifarnet", "lenet")
NEGLIGIBLE = 0.1  # as a fraction of the time of backward


def measure(bench: Bench) -> Json:
    arguments = ("--threads", "1", "--steps", "15")
    return {
        model: bench.ask("train", "--bench-second-moment", "--model", model, *arguments)[0]
        for model in MODELS
    }


def show(found: Json, context: Context) -> Shown:
    lines = [
        [
            model,
            str(one["batch"]),
            milliseconds(one["backward_seconds"]),
            milliseconds(one["with_second_moment_seconds"]),
            percent(one["added_to_backward"]),
            percent(one["added_to_step"]),
        ]
        for model, one in found.items()
    ]
    header = ["network", "batch", "backward", "with second moments", "added to backward"]
    header += ["added to forward and backward"]
    text = f"""
{table(header, lines)}

More runs: [variance](methods/variance.md#the-second-moment-in-the-trainer).
"""
    added = ", ".join(
        f"{model} {percent(one['added_to_backward'])}" for model, one in found.items()
    )
    figure = f"second moments make backward take longer: {added}"
    verdict = HOLDS if found["resnet9"]["added_to_backward"] < NEGLIGIBLE else FAILS
    return Shown(verdict, figure, text)


CLAIM = Claim(
    name="variance-cost-of-moments",
    system="Variance",
    claim="computing the variance of the gradient costs a negligible amount of time",
    commands=("thinreduce train --bench-second-moment --model MODEL --threads 1 --steps 15",),
    measure=measure,
    show=show,
    seconds=30,
    rule="""
The claim holds if second moments add less than 10 % to the time of backward of `resnet9`.
""",
)
