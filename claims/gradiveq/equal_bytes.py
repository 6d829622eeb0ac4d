"""Claim: a much higher speed-up than QSGD at the same compression ratio, and works with it."""

from __future__ import annotations

from pathlib import Path

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import FAILS, HOLDS, IN_PART, NOT_YET, Claim, Context, Json, Shown
from ..commands import (
    GBIT,
    LINKS,
    ON_RECORDED,
    RESNET9_EVERY_STEP,
    SLOW,
    long_training,
    recorded,
    virtual,
)
from ..noise import no_loss, seeds_note
from ..trained import UNTRAINED, Trained
from ..training_table import training_table
from ..verdict import every
from ..wording import bandwidth, code, milliseconds, times

CHART = "gradiveq-equal-bytes.svg"
ALONE, QSGD, COMPOSED = "resnet9-gradiveq", "resnet9-qsgd", "resnet9-gradiveq-qsgd"
SETTINGS = (ALONE, QSGD, "resnet9-dqsg", COMPOSED, "resnet9-gradiveq-dqsg")
MUCH, SOME = 1.5, 1.1  # times as fast as qsgd
GATHERED = ("qsgd", "gradiveq+qsgd")  # families in which all payloads go to all ranks


def composed(ratios: tuple[int, ...], quantizer: str = "") -> tuple[str, ...]:
    return tuple(f"gradiveq:feedback=off,ratio={ratio}{quantizer}" for ratio in ratios)


FAMILIES = {
    "qsgd": ("qsgd:bits=4", "qsgd:bits=5", "qsgd:bits=6"),
    "dqsg": ("dqsg:levels=3", "dqsg:levels=7", "dqsg:levels=15"),
    "gradiveq": composed((4, 8, 16)),
    "gradiveq+qsgd": composed((2, 4, 8), "+qsgd:bits=6"),
    "gradiveq+dqsg": composed((2, 4, 8), "+dqsg:levels=15"),
}


def measure(bench: Bench) -> Json:
    recording = bench.record("resnet9-dense", RESNET9_EVERY_STEP)
    found: Json = {}
    for family, specs in FAMILIES.items():
        errors = bench.codec(recording, *specs)
        reduced = {
            link: bench.reduce(4, link, "--floats", "4000000", "--steps", "2", methods=specs)
            for link in LINKS
        }
        found[family] = [
            {
                "spec": spec,
                "ratio": error["ratio"],
                "nmse": error["nmse"],
                "seconds": {link: reduced[link][i]["seconds"] for link in LINKS},
                "speedup": {link: reduced[link][i]["speedup"] for link in LINKS},
                "synthetic_bytes": reduced[GBIT][i]["bytes_sent"],
            }
            for i, (spec, error) in enumerate(zip(specs, errors))
        ]
    return found


def fewer_bytes(family: str, one: Json) -> float:
    """Returns how many times fewer bytes 4 ranks send than with fp32.

    A gather sends 3 payloads per rank; a sum sends 1.5, and so does fp32.
    """
    ratio: float = one["ratio"]
    return ratio / 2 if family in GATHERED else ratio


def line(one: Json) -> list[str]:
    return [
        code(one["spec"]),
        times(one["fewer"]),
        f"{one['nmse']:.3f}",
        f"{one['synthetic_bytes'] / 1e6:.2f} MB",
        *(f"{milliseconds(one['seconds'][link])}, {times(one['speedup'][link])}" for link in LINKS),
    ]


def draw_errors(families: dict[str, list[Json]], path: Path) -> None:
    panel = Panel(
        title="error at equal bytes sent",
        x="times fewer bytes sent, 4 ranks",
        y="squared error / energy",
        x_scale="log",
        y_scale="log",
    )
    for family, runs in families.items():
        ordered = sorted(runs, key=lambda one: one["fewer"])
        panel.lines[family] = ([o["fewer"] for o in ordered], [o["nmse"] for o in ordered])
    draw(path, panel)


def nearest(families: dict[str, list[Json]]) -> dict[str, Json]:
    """Returns the spec of each family that is nearest to 8 times fewer bytes."""
    return {
        family: min(runs, key=lambda one: abs(one["fewer"] / 8 - 1))
        for family, runs in families.items()
    }


def faster_than_qsgd(near: dict[str, Json]) -> float:
    """Returns the time of a reduce with qsgd / with gradiveq, at 100 Mbit."""
    ratio: float = near["gradiveq"]["speedup"][SLOW] / near["qsgd"]["speedup"][SLOW]
    return ratio


def on_recorded(families: dict[str, list[Json]], near: dict[str, Json]) -> str:
    """Returns the text on errors, bytes and times."""
    is_less = near["gradiveq"]["nmse"] < near["qsgd"]["nmse"]
    header = ["spec", "fewer bytes sent", "error", "synthetic: sent"]
    header += [*(f"step at {bandwidth(link)}" for link in LINKS)]
    return f"""
Bytes and errors are of recorded gradients (`resnet9`, every step, the second half of them, no feedback).
MB and times are of 4 M synthetic floats with ResNet-50's layers, 4 ranks in the virtual cluster; `qsgd` codes them with another number of bytes.
A rank sends its payload to 3 others in a gather, and 1.5 payloads in a sum; *fewer bytes sent* counts them.

{table(header, [line(one) for runs in families.values() for one in runs])}

Near 8 times fewer bytes `gradiveq` is {faster_than_qsgd(near):.2f} times as fast as `qsgd` at 100 Mbit and has {"less" if is_less else "more"} error.
"""


def combined(trained: Trained) -> str:
    """Returns the verdict on the training of gradiveq with qsgd after it."""
    verdict = no_loss(trained.gap(COMPOSED))
    alone = [one for one in (ALONE, QSGD) if trained.pairs(one)]
    if verdict != NOT_YET and any(trained.fewer(COMPOSED) <= trained.fewer(one) for one in alone):
        return FAILS
    return IN_PART if verdict == HOLDS and len(alone) < 2 else verdict


def judged(faster: float | None, trained: Trained) -> str:
    both = combined(trained)
    if both == NOT_YET:
        return NOT_YET
    if faster is None:  # one part of two neither shows nor refutes the claim
        return NOT_YET if both == FAILS else IN_PART
    speed = HOLDS if faster >= MUCH else IN_PART if faster >= SOME else FAILS
    return every([speed, both])


def show(found: Json, context: Context) -> Shown:
    trained = context.trained
    faster, figure, text = None, "speed and error are not measured yet", ""
    charts: tuple[str, ...] = ()
    if found:
        families = {
            family: [{**one, "fewer": fewer_bytes(family, one)} for one in runs]
            for family, runs in found.items()
        }
        near = nearest(families)
        faster = faster_than_qsgd(near)
        draw_errors(families, context.charts / CHART)
        charts, text = (CHART,), on_recorded(families, near)
        figure = "nearest to 8 times fewer bytes sent, at 100 Mbit: " + ", ".join(
            f"{family} ({times(one['fewer'])}) error {one['nmse']:.2f}, {times(one['speedup'][SLOW])} faster"
            for family, one in near.items()
        )
    gaps = trained.gaps(SETTINGS)
    parts = [
        f"`{trained.of(setting)[0]['spec']}` {gap} at {times(trained.fewer(setting))} fewer bytes"
        for setting, gap in gaps.items()
    ]
    trainings = f"accuracy against fp32: {', '.join(parts)}" if parts else UNTRAINED
    figure = f"{figure}; {trainings}{seeds_note(gaps.values())}"
    text += training_table(trained, SETTINGS)
    return Shown(judged(faster, trained), figure, text, charts)


CLAIM = Claim(
    name="gradiveq-equal-bytes",
    system="GradiVeQ",
    claim="`gradiveq` speeds a step up much more than QSGD does at the same compression ratio, and the two can be combined",
    commands=(
        recorded(RESNET9_EVERY_STEP),
        ON_RECORDED,
        virtual(4000000, "--method SPEC"),
        long_training("SPEC"),
    ),
    measure=measure,
    show=show,
    seconds=120,
    trainings=SETTINGS,
    rule="""
The claim has two parts.
Near 8 times fewer bytes, `gradiveq` is at least 1.5 times as fast as `qsgd` at 100 Mbit; this part holds in part from 1.1 times on, and fails below.
The training of `resnet9` with `gradiveq:ratio=4+qsgd` loses no more than noise, and sends fewer bytes than `gradiveq` and `qsgd` alone;
this part fails if the training clearly loses, or sends as many bytes as one of the two or more.
The claim holds if both parts do, and does not hold if both fail.
Otherwise it holds in part; before this training has ended it is not shown.
`dqsg` is only compared.
""",
)
