"""Claim: works where layers are narrow."""

from __future__ import annotations

from ..claim import HOLDS, IN_PART, NOT_YET, Claim, Context, Json, Shown
from ..noise import no_loss, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_table import training_table
from ..verdict import some
from ..wording import times

DEFAULT, PAPER = "resnet20-variance", "resnet20-variance-full0"
CHOSEN = "resnet20-variance-full512"  # by hand, as the method's page recommends
SETTINGS = (DEFAULT, PAPER, CHOSEN)
FEWER = 10  # times fewer bytes, without which compression is not worth its cost


def part(trained: Trained, setting: str) -> str:
    verdict = no_loss(trained.gap(setting))
    return IN_PART if verdict == HOLDS and not trained.sends(setting, FEWER) else verdict


def judged(trained: Trained) -> str:
    chosen = part(trained, CHOSEN)
    return some(
        [part(trained, DEFAULT), part(trained, PAPER), IN_PART if chosen == HOLDS else chosen]
    )


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    text = training_table(trained, SETTINGS)
    gaps = trained.gaps(SETTINGS)
    if not gaps:
        return Shown(NOT_YET, UNTRAINED, text)
    parts = [
        f"`{trained.of(setting)[0]['spec']}` {gap} at {times(trained.fewer(setting))} fewer bytes"
        for setting, gap in gaps.items()
    ]
    figure = f"accuracy against fp32: {', '.join(parts)}{seeds_note(gaps.values())}"
    return Shown(judged(trained), figure, text)


CLAIM = Claim(
    name="variance-narrow",
    system="Variance",
    claim="the method works for networks whose layers are narrow",
    commands=(
        "thinreduce train --model resnet20 --ranks 4 --epochs 5 --optimizer adam --method variance",
    ),
    show=show,
    trainings=SETTINGS,
    rule="""
The widest layers of `resnet20` have 64 · 64 channel pairs; `full=0` treats all layers alike, as the paper does,
and `full=512` is the value that [variance](methods/variance.md#how-a-step-works) recommends for such a network.
The claim holds if our default or `full=0` loses no more than noise and sends at least 10 times fewer bytes than fp32.
It does not hold if all three settings are trained and all clearly lose accuracy; until then it is not shown.
Otherwise it holds in part: with fewer bytes saved, with a value of `full` that was chosen by hand, or without a clear loss.
""",
)
