"""A claim of a paper: how it is measured, and what the page says about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .bench import Bench
from .recordings import Json

HOLDS, IN_PART, FAILS, NOT_YET = "holds", "holds in part", "does not hold", "not shown yet"

RESNET9 = "--model resnet9 --ranks 4 --steps 200 --save-every 4"
DENSE = "--model resnet9 --ranks 4 --steps 60 --save-every 1"
VGG = "--model vgg-small --ranks 4 --batch 16 --steps 120 --save-every 4"
# As the authors of NDQSG trained: plain gradient descent, a batch of 200 for all ranks together.
AUTHORS = "--model fc-300-100 --optimizer sgd --momentum 0 --learning-rate 0.01 --schedule constant"
BATCHES = (8, 32, 128, 512)
GBIT, SLOW = "1gbit,0.1ms", "100mbit,1ms"
LINKS = {GBIT: (1e9, 1e-4), SLOW: (1e8, 1e-3)}  # bits per second, seconds
RESNET50 = ("--floats", "25600000")


@dataclass(frozen=True)
class Shown:
    """What the page says about a claim."""

    verdict: str
    figure: str  # for the table
    text: str = ""  # for the claim's own section
    charts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    name: str
    system: str
    claim: str
    commands: tuple[str, ...]
    show: Callable[[Json, Path], Shown]
    measure: Callable[[Bench], Json] = field(default=lambda bench: {})
    seconds: float = 0  # on two idle cores, for the estimate of the time left
    missing: tuple[str, ...] = ()  # trainings that the verdict still lacks
    rule: str = ""  # by which the verdict follows from the figures


def words(spec: str) -> str:
    return f"`{spec}`"


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def trained(folder: Path, *names: str) -> str:
    """Says what the trainings of docs/results.md found; `folder` is docs/claims."""
    results = json.loads((folder.parent / "results" / "results.json").read_text())
    rows = {row["setting"]["name"]: row for row in results["rows"]}
    parts = []
    for row in (rows[name] for name in names if name in rows):
        fewer = rows["fp32"]["bytes_sent"] / row["bytes_sent"]
        faster = [f"{at['speedup']:.1f}x faster at {link}" for link, at in row["links"].items()]
        parts.append(
            f"{words(row['setting']['spec'])} {row['points']:+.1f} points with {fewer:.1f}x fewer "
            f"bytes, a step {' and '.join(faster)}"
        )
    return "cifarnet, 5 epochs, one seed ([results](results.md)): " + "; ".join(parts)


def untrained(figure: str, *names: str) -> Callable[[Json, Path], Shown]:
    """Says what is known of a claim whose trainings are not made yet."""
    return lambda found, folder: Shown(
        NOT_YET, "; ".join([figure, *([trained(folder, *names)] if names else [])])
    )


def recorded(arguments: str) -> str:
    return f"thinreduce train {arguments} --save-gradients DIR"


ON_RECORDED = "thinreduce bench codec --gradients DIR --method SPEC"
VIRTUAL = "thinreduce bench reduce --simulate LINK --ranks N --shapes resnet50"
LONG = "thinreduce train --model resnet9 --ranks 4 --epochs 10 --seed SEED --method SPEC"
