"""Claim: aggregation is more than 5 times faster."""

from __future__ import annotations

from pathlib import Path

from reproduce.page import table

from ..bench import Bench
from ..claim import FAILS, IN_PART, Claim, Json, Shown
from ..commands import LINKS, long_training, virtual
from ..trained import trained
from ..wording import bandwidth, milliseconds, times

# No basis holds 99 % of the energy of synthetic gradients, so the ratio is set.
PAPER = "gradiveq:preset=paper,warmup=0,energy=off,ratio=8"
PAPER_PHASES = "resnet50 / 6, the paper's phases"
# Name of the row: floats, steps, spec.
RUNS = {
    "resnet50": (25600000, 2, "gradiveq"),
    "resnet50 / 6": (4000000, 2, "gradiveq"),
    PAPER_PHASES: (4000000, 2, PAPER),
    "resnet50 / 62": (412954, 5, "gradiveq"),
}


def measure(bench: Bench) -> Json:
    found: Json = {}
    for link in LINKS:
        found[link] = {}
        for name, (floats, steps, spec) in RUNS.items():
            arguments = ("--floats", str(floats), "--steps", str(steps), "--cycle")
            found[link][name] = bench.reduce(4, link, *arguments, methods=(spec,))[0]
    return found


def line(link: str, name: str, one: Json) -> list[str]:
    return [
        link,
        name,
        f"{one['floats']:,}",
        milliseconds(one["fp32_seconds"]),
        milliseconds(one["seconds"]),
        times(one["speedup"]),
        f"{one['cycle']['steps']}",
        times(one["cycle"]["speedup"]),
    ]


def show(found: Json, folder: Path) -> Shown:
    lines = [line(link, name, one) for link, runs in found.items() for name, one in runs.items()]
    ours, paper = (
        {link: runs[name]["cycle"]["speedup"] for link, runs in found.items()}
        for name in ("resnet50", PAPER_PHASES)
    )
    header = ["link", "layers", "floats", "fp32, per step", "compressed, per step", "faster"]
    header += ["steps of a cycle", "faster over a cycle"]
    text = f"""
4 ranks in the virtual cluster, synthetic gradients with the layers of ResNet-50, whole (`resnet50`) or with narrower layers (`/ 6`: a sixth of the floats).
A cycle is the time from one basis to the next, with the steps and messages that the new basis needs.
Synthetic gradients hardly correlate, so `gradiveq` asks for new bases as often as it may.
In the paper's phases 100 of 500 steps are uncompressed; the ratio is then set to 8, because no basis holds 99 % of the energy of synthetic gradients.

{table(header, lines)}
{trained(folder, "gradiveq", "gradiveq-paper")}"""
    at_links = ", ".join(f"{times(ours[link])} at {bandwidth(link)}" for link in found)
    figure = (
        f"speed-up over fp32 of the aggregation in a cycle, with ResNet-50's layers: {at_links}; "
        f"with the paper's phases {', '.join(times(one) for one in paper.values())}"
    )
    return Shown(IN_PART if min(ours.values()) > 5 else FAILS, figure, text)


CLAIM = Claim(
    name="gradiveq-aggregation",
    system="GradiVeQ",
    claim="aggregation is more than 5 times faster and the whole training takes almost half the time, without a noticeable loss",
    commands=(
        virtual(25600000, "--cycle --method gradiveq"),
        virtual(4000000, f"--cycle --method {PAPER}"),
    ),
    measure=measure,
    show=show,
    seconds=150,
    missing=(long_training("gradiveq"), long_training("gradiveq --link 100mbit")),
    rule="""
The claim does not hold if a cycle with ResNet-50's layers is not 5 times faster than fp32 on both links.
Otherwise it holds in part, until trainings of the residual network show time and loss.
""",
)
