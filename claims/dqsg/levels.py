"""Claim: the number of levels trades accuracy for time."""

from __future__ import annotations

from itertools import combinations

from ..charts import draw
from ..claim import FAILS, HOLDS, IN_PART, NOT_YET, Claim, Context, Json, Shown
from ..commands import long_training
from ..noise import SEEDS, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_charts import over_bytes
from ..training_table import training_table
from ..wording import times

CHART = "dqsg-levels.svg"
LEVELS = {
    3: "resnet9-dqsg-3",
    5: "resnet9-dqsg-5",
    7: "resnet9-dqsg",
    15: "resnet9-dqsg-15",
    31: "resnet9-dqsg-31",
}
SETTINGS = tuple(LEVELS.values())


def judged(trained: Trained) -> str:
    # Fewer levels first; a gap above 0 says that more levels are more accurate.
    pairs = [
        (few, many, gap)
        for few, many in combinations(filter(trained.pairs, SETTINGS), 2)
        if (gap := trained.gap(many, few)) is not None
    ]
    if not pairs:
        return NOT_YET
    bytes_fall = all(trained.fewer(few) > trained.fewer(many) for few, many, _ in pairs)
    if not bytes_fall or any(gap.mean < 0 and gap.is_clear for _, _, gap in pairs):
        return FAILS
    ends = trained.gap(SETTINGS[-1], SETTINGS[0])
    is_trade = ends is not None and ends.mean > ends.noise
    is_ordered = all(gap.mean >= -gap.noise for _, _, gap in pairs)
    is_complete = all(len(trained.pairs(setting)) >= SEEDS for setting in SETTINGS)
    return HOLDS if is_trade and is_ordered and is_complete else IN_PART


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    text = training_table(trained, SETTINGS) + context.quoted.table("dqsg", "dqsg-paper")
    gaps = trained.gaps(SETTINGS)
    if not gaps:
        return Shown(NOT_YET, UNTRAINED, text)
    lines = {"dqsg": SETTINGS, "fp32": ("resnet9-fp32",)}
    draw(context.charts / CHART, over_bytes(trained, "resnet9, 3 to 31 levels", lines))
    parts = [
        f"{levels} levels {gaps[setting]} at {times(trained.fewer(setting))} fewer bytes"
        for levels, setting in LEVELS.items()
        if setting in gaps
    ]
    figure = f"accuracy against fp32: {', '.join(parts)}{seeds_note(gaps.values())}"
    return Shown(judged(trained), figure, text, (CHART,))


CLAIM = Claim(
    name="dqsg-levels",
    system="DQSG",
    claim="the number of levels trades accuracy for training time",
    commands=(long_training("dqsg:levels=M"),),
    show=show,
    trainings=SETTINGS,
    rule="""
Bytes stand for time: where the link is slow they decide it, and trainings share this machine with other programs.
The claim holds if fewer levels always send fewer bytes, 3 levels are less accurate than 31 by more than noise,
and no number of levels is less accurate than a smaller one by more than noise.
It does not hold if fewer levels send as many bytes or more, or if a number of levels is less accurate than a smaller one by more than twice the noise.
Otherwise it holds in part: fewer levels save bytes, and the loss of accuracy is not shown.
At least two numbers of levels must be trained.
""",
)
