"""Claim: a very high compression ratio at the baseline's accuracy."""

from __future__ import annotations

from ..charts import draw
from ..claim import FAILS, HOLDS, IN_PART, NOT_YET, Claim, Context, Json, Shown
from ..commands import long_training
from ..noise import SEEDS, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_charts import over_bytes
from ..training_table import training_table
from ..verdict import some
from ..wording import times

CHART = "variance-ratio.svg"
BASELINE = "resnet9-fp32-adam"
DEFAULT = "resnet9-variance"
BY_ALPHA = ("resnet9-variance-alpha2", "resnet9-variance-alpha3")
HYBRID, STROM = "resnet9-variance-hybrid", "resnet9-variance-strom"
SETTINGS = (DEFAULT, *BY_ALPHA, HYBRID, STROM)
# Strom's rule is what the method is compared with: it has no variance.
CANDIDATES = (DEFAULT, *BY_ALPHA, HYBRID)
HIGH, VERY_HIGH = 30, 100  # times fewer bytes
POINTS = 0.5  # that may be lost


def judged(trained: Trained, setting: str) -> str:
    gap = trained.gap(setting)
    if gap is None:
        return NOT_YET
    if -gap.mean <= POINTS and gap.seeds >= SEEDS and trained.sends(setting, VERY_HIGH):
        return HOLDS
    within = -gap.mean <= POINTS + gap.noise
    return IN_PART if within and trained.sends(setting, HIGH) else FAILS


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    text = training_table(trained, SETTINGS) + context.quoted.table("variance", "variance-paper")
    text += (
        "\nOn MNIST 100 times fewer bytes were reached ([variance](methods/variance.md#figures)).\n"
    )
    gaps = trained.gaps(SETTINGS)
    if not gaps:
        return Shown(NOT_YET, UNTRAINED, text)
    lines = {
        "variance": (DEFAULT,),
        "variance (full = 0)": BY_ALPHA,
        "hybrid": (HYBRID,),
        "Strom's rule": (STROM,),
        "fp32": (BASELINE,),
    }
    draw(context.charts / CHART, over_bytes(trained, "resnet9, Adam, 10 epochs", lines))
    parts = [
        f"`{trained.of(setting)[0]['spec']}` {gap} at {times(trained.fewer(setting))} fewer bytes"
        for setting, gap in gaps.items()
    ]
    figure = f"accuracy against fp32: {', '.join(parts)}{seeds_note(gaps.values())}"
    verdict = some(judged(trained, setting) for setting in CANDIDATES)
    return Shown(verdict, figure, text, (CHART,))


CLAIM = Claim(
    name="variance-ratio",
    system="Variance",
    claim="CNNs reach the accuracy of the uncompressed baseline at a very high compression ratio",
    commands=(long_training("variance:alpha=A --optimizer adam"),),
    show=show,
    trainings=SETTINGS,
    rule="""
The claim holds if a training sends at least 100 times fewer bytes than fp32 and loses at most 0.5 points, as the mean of three seeds.
It holds in part if a training sends at least 30 times fewer bytes and loses at most 0.5 points plus the noise.
It does not hold if all settings but Strom's rule are trained and none of them does so; until then it is not shown.
Strom's rule (α = 0), which looks at no variance, is only compared.
""",
)
