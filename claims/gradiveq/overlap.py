"""Claim: compression runs in parallel with the ring."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..claim import FAILS, HOLDS, IN_PART, Claim, Context, Json, Shown
from ..commands import LINKS, virtual
from ..wording import bandwidth, code, milliseconds, percent

OURS, COMPOSED = "gradiveq", "gradiveq+dqsg:levels=15"
SPECS = (OURS, COMPOSED, "fft", "dqsg")


def measure(bench: Bench) -> Json:
    arguments = ("--floats", "12800000", "--steps", "2")
    return {link: bench.reduce(4, link, *arguments, methods=SPECS) for link in LINKS}


def hidden(one: Json, link: str) -> tuple[float, float, float]:
    """Returns how long the bytes occupy the link, and which fraction of the work they hide.

    The third figure is relative to the most that can be hidden: the work, or the time of the bytes
    if that is shorter.
    """
    bits_per_second, _ = LINKS[link]
    busy = 8 * one["bytes_sent"] / bits_per_second
    work = one["stages"]["encode"] + one["stages"]["decode"]
    seconds = min(max(busy - one["stages"]["wire"], 0), work)
    return busy, seconds / work, seconds / min(work, busy)


def show(found: Json, context: Context) -> Shown:
    lines = []
    fractions: dict[tuple[str, str], tuple[float, float]] = {}
    for link, runs in found.items():
        for spec, one in zip(SPECS, runs):
            busy, of_work, of_possible = hidden(one, link)
            fractions[spec, link] = of_work, of_possible
            encode, decode, wait = (one["stages"][name] for name in ("encode", "decode", "wire"))
            spent = [milliseconds(s) for s in (encode, decode, busy, wait, one["seconds"])]
            lines.append([link, code(spec), *spent, percent(of_work), percent(of_possible)])
    header = ["link", "spec", "encode", "decode", "busy", "wait", "step", "hidden"]
    header += ["hidden / most possible"]
    text = f"""
12.8 M floats with ResNet-50's layers, 4 ranks, virtual time.
A rank's bytes occupy its link for *busy*; the rank waits for messages only for *wait*.
For the rest of *busy* it encoded or decoded, so (busy − wait) / (encode + decode) is the fraction of the work that is hidden behind the wire.
No more than the shorter of *busy* and the work can be hidden; the last column is relative to that.

{table(header, lines)}
"""
    at_links = ", ".join(
        f"{percent(fractions[OURS, link][0])} at {bandwidth(link)} "
        f"({percent(fractions[OURS, link][1])} of the most that the wire can hide)"
        for link in found
    )
    composed = ", ".join(percent(fractions[COMPOSED, link][0]) for link in found)
    figure = f"of encode and decode the wire hides {at_links}; with `+dqsg` {composed}"
    ours = [fractions[OURS, link][1] for link in found]
    verdict = HOLDS if min(ours) > 0.8 else IN_PART if max(ours) > 0.4 else FAILS
    return Shown(verdict, figure, text)


CLAIM = Claim(
    name="gradiveq-overlap",
    system="GradiVeQ",
    claim="compression runs in parallel with the ring",
    commands=(virtual(12800000, "--method gradiveq"),),
    measure=measure,
    show=show,
    seconds=60,
    rule="""
The claim holds if, on both links, at least 80 % of the work that can be hidden is hidden.
It holds in part if 40 % is hidden on one link.
The verdict is about `gradiveq` without a quantizer after it.
The rule was chosen after a first measurement: where the wire takes less time than the work, 80 % of all work can't be hidden.
""",
)
