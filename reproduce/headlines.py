"""Compares each paper's headline with the same quantity measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .measures import Row
from .runs import Json, Program
from .settings import PARAMETERS

SLOW, FAST = "100mbit", "1gbit"
# Settings that the headlines and the aims need.
NEEDED = (
    "fp32", "fp32-adam", "gradiveq", "gradiveq-8x", "dqsg", "ndqsg", "fft", "sketch", "variance",
)  # fmt: skip


@dataclass(frozen=True)
class Headline:
    paper: str
    claim: str
    here: str
    differs: str


@dataclass(frozen=True)
class Target:
    what: str
    found: str
    met: bool


def kilobits(program: Program, gradients: str, spec: str) -> float:
    """Returns the size of a step's payload on recorded gradients."""
    found = program.bench(f"codec-{spec}", spec, "codec", "--gradients", gradients)
    return 8 * found["wire_bytes"] / 1000


def gradiveq_cycle(program: Program) -> Json:
    return program.bench(
        "reduce-gradiveq", "gradiveq", "reduce", "--ranks", "4", "--floats", "25600000", "--link", FAST,
        "--steps", "3", "--cycle",
    )  # fmt: skip


def headlines(program: Program, by_name: dict[str, Row], gradients: str) -> list[Headline]:
    def points(name: str) -> str:
        return f"{by_name[name].points:+.2f} points"

    def faster(name: str, than: str, link: str) -> float:
        return by_name[than].links[link].step_seconds / by_name[name].links[link].step_seconds

    def paper(name: str, text: Callable[[Row], str]) -> str:
        """Returns the text for the paper's own setting, "" if it was not run."""
        return text(by_name[name]) if name in by_name else ""

    def kbit(row: Row) -> float:
        return 32 * PARAMETERS / row.ratio / 1000

    cycle = gradiveq_cycle(program)["cycle"]
    three, seven = (
        kilobits(program, gradients, f"dqsg:levels={m},collective=gather,entropy=off")
        for m in (3, 7)
    )
    nested = kilobits(program, gradients, "ndqsg:entropy=off")
    always = kilobits(program, gradients, "ndqsg:entropy=off,failures=1")
    rivals = [name for name in ("qsgd", "terngrad", "topk") if name in by_name]
    variance, sketch = by_name["variance"], by_name["sketch"]

    def elements(row: Row) -> str:
        return f"{100 * row.accuracy:.1f} %, {row.paper_ratio or 0:.0f} times fewer elements and a payload {row.ratio:.0f} times smaller"

    return [
        Headline(
            "GradiVeQ (2018)",
            "aggregation 5.25x faster over a cycle of 500 steps; top-1 0.676 → 0.666",
            f"{cycle['speedup']:.1f}x over a cycle of {cycle['steps']} steps (25.6 M floats, {FAST}); {points('gradiveq')}"
            + paper("gradiveq-paper", lambda row: f"; the paper's schedule: {row.points:+.2f} points, {row.fewer:.1f}x fewer bytes sent"),
            "6 nodes, ResNet-32, CIFAR-100 there; 4 ranks that share the cores of one machine here. Ours samples at every step instead of in phases",
        ),
        Headline(
            "FFT + range float (2020)",
            "AlexNet, 8 GPUs: a step 2.26x faster than uncompressed, 1.31x than QSGD, 1.25x than TernGrad, 1.47x than top-k",
            f"a step at {SLOW} {by_name['fft'].links[SLOW].speedup:.2f}x faster than fp32, "
            + ", ".join(f"{faster('fft', rival, SLOW):.2f}x than {rival}" for rival in rivals),
            "GPUs on InfiniBand there, four ranks that share one machine, on a thin link, here; our rivals are entropy coded",
        ),
        Headline(
            "Variance-based (2018)",
            "CIFAR-10, Adam, α=1.5: 88.7 % against 88.1 %, 453 times fewer elements",
            f"{elements(variance)}, against {100 * by_name['fp32-adam'].accuracy:.1f} %"
            + paper("variance-paper", lambda row: f"; rounding errors dropped, in 32-bit words: {elements(row)}"),
            "8 workers, a VGG-like network and a whole training there: late in a training most elements are noise, and 5 epochs have no late part",
        ),
        Headline(
            "DQSG, NDQSG (2019)",
            "CifarNet, Kbit per step and worker: fp32 34185.5; 3 symbols 1693.2; 7 symbols 2999.1; nested 2346.2",
            f"fixed length on recorded gradients: {three:.1f}; {seven:.1f}; nested {nested:.1f}, {always:.1f} if it must nest; "
            f"entropy coded over the whole training {kbit(by_name['ndqsg']):.1f} (nested)"
            + paper("dqsg-paper", lambda row: f" and {kbit(row):.1f} (3 symbols)"),
            "the same number of parameters; one scale per block of 512, 1-D tensors as fp32 and headers are counted here. "
            "Nesting falls back to plain codes where ranks agree too little",
        ),
        Headline(
            "Sketched-SGD (2019)",
            "CIFAR-10 ResNet, 6.5 M parameters: 94 % at 11x; the first version's abstract: one point lost at 8x",
            f"{sketch.points:+.2f} points at {sketch.fewer:.1f}x"
            + paper("sketch-paper", lambda row: f"; the paper's spending of the bytes {row.points:+.2f} at {row.fewer:.1f}x"),
            "a whole training of a ResNet there; 5 epochs, a sixth of the parameters and no batch norm here",
        ),
    ]  # fmt: skip


def targets(by_name: dict[str, Row]) -> list[Target]:
    """Returns the project's aims. An aim that is missed stays in the table."""

    def close(name: str, points: float, ratio: float) -> Target:
        row = by_name[name]
        return Target(
            f"`{row.setting.spec}`: within {points:g} point{'s' if points != 1 else ''} of fp32"
            + (f", a payload {ratio:g}x smaller or more" if ratio else ""),
            f"{row.points:+.2f} points, {row.ratio:.1f}x, {row.fewer:.1f}x fewer bytes sent",
            row.points >= -points and row.ratio >= ratio,
        )

    fastest = sorted(
        (
            row
            for row in by_name.values()
            if row.setting.spec != "fp32" and row.setting.kind != "paper"
        ),
        key=lambda row: -row.links[SLOW].speedup,
    )[:3]
    return [
        close("gradiveq", 1, 8),
        close("gradiveq-8x", 1, 8),
        close("dqsg", 1, 0),
        close("ndqsg", 1, 0),
        close("fft", 1, 16),
        close("sketch", 1, 8),
        close("variance", 1, 50),
        Target(
            f"the best three at {SLOW} at least 3x faster end to end than overlapped fp32",
            ", ".join(f"{row.setting.name} {row.links[SLOW].speedup:.1f}x" for row in fastest),
            all(row.links[SLOW].speedup >= 3 for row in fastest),
        ),
    ]
