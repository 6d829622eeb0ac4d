"""Says who is first over each link, where that is not thinreduce and why, and where compression
does not pay. All sentences follow from the figures."""

from __future__ import annotations

from statistics import mean

from reproduce.page import seconds, table, wrapped

from . import contenders as plan
from .contenders import BF16, DDP, OURS
from .figures import Figures, OverLink, Row

NOISE = 1.02  # times whose ratio is below this count as equal
UNCOMPRESSED = (DDP.name, "thinreduce fp32")
README_ROWS = (
    DDP.name, BF16.name, "DiLoCo int8", "thinreduce dqsg:levels=15", "thinreduce local dqsg", "thinreduce auto",
)  # fmt: skip


def steps_of(row: Row) -> float:
    return mean(one for one in row.steps if one is not None)


def reason(first: Row, ours: Row, link: str) -> str:
    """Says by what `first` is ahead of `ours`: fewer steps, shorter ones, or both."""
    parts = []
    fewer, faster = steps_of(ours) / steps_of(first), ours.links[link].step / first.links[link].step
    if fewer > 1.005:
        parts.append(f"`{first.contender.name}` needs {100 - 100 / fewer:.0f} % fewer steps")
    if faster > 1.005:
        parts.append(
            f"a step of `{first.contender.name}` takes {1e3 * first.links[link].step:.0f} ms, one of "
            f"`{ours.contender.name}` {1e3 * ours.links[link].step:.0f} ms"
        )
    return " and ".join(parts) or "the difference is below a percent"


def verdict(found: Figures, link: str) -> str:
    if found.busy(link):
        return f"- **{link}**: not decided, because other programs ran."
    ranking = found.ranking(link)
    ours = next(((time, row) for time, row in ranking if row.contender.group == OURS), None)
    if not ranking or ours is None:
        return f"- **{link}**: not measured yet."
    time, first = ranking[0]
    others = [one for one in ranking if one[1].contender.group != OURS]
    text = f"- **{link}**: first is `{first.contender.name}` with {seconds(time)}"
    if first.contender.group == OURS:
        if others:
            ahead = others[0][0] / time
            text += f"; the best of the others is `{others[0][1].contender.name}` with {seconds(others[0][0])}, {ahead:.2f} times as long"
        return text + "."
    text += f"; the best of ours is `{ours[1].contender.name}` with {seconds(ours[0])}, {ours[0] / time:.2f} times as long"
    return f"{text}.\n  Why: {reason(first, ours[1], link)}."


def busy(found: Figures) -> str:
    """Says over which links other programs made the times too long."""
    links = [link for link in plan.LINKS if found.busy(link)]
    if not links:
        return ""
    return (
        f"**Other programs ran while steps were timed at {' and '.join(links)}**:\nthese times are too long, "
        "by different factors, and decide nothing; the next `make peers` takes them again."
    )


def unreached(found: Figures) -> str:
    """Names the contenders that did not reach the target with any seed."""
    names = [
        f"`{row.contender.name}`"
        for row in found.rows
        if row.curves and all(steps is None for steps in row.steps)
    ]
    return wrapped(f"These did not reach the target: {', '.join(names)}.") if names else ""


def text(found: Figures) -> str:
    """Returns the verdicts on all links, and what compression gains there."""
    said = [verdict(found, link) for link in plan.LINKS]
    gains = [*(no_gain(found, link) for link in plan.LINKS), unreached(found)]
    return "\n".join([busy(found), "", *said, "", *(one for one in gains if one)]).strip()


def best(found: Figures, link: str, *, compressed: bool) -> tuple[float, Row] | None:
    return next(
        (
            one
            for one in found.ranking(link)
            if (one[1].contender.name not in UNCOMPRESSED) == compressed
        ),
        None,
    )


def no_gain(found: Figures, link: str) -> str:
    """Says what compression gains over a link, and how many contenders lose to no compression."""
    plain, small = (best(found, link, compressed=kind) for kind in (False, True))
    if not plain or not small or found.busy(link):
        return ""
    slower = [
        row
        for time, row in found.ranking(link)
        if time > plain[0] * NOISE and row.contender.name not in UNCOMPRESSED
    ]
    losing = (
        f"; {len(slower)} contenders that compress are slower than no compression" if slower else ""
    )
    if small[0] * NOISE >= plain[0]:
        return (
            f"At {link} compression does not pay: `{plain[1].contender.name}` takes {seconds(plain[0])} "
            f"and the fastest that compresses, `{small[1].contender.name}`, {seconds(small[0])}{losing}."
        )
    return (
        f"At {link} `{small[1].contender.name}` takes {seconds(small[0])} and no compression "
        f"{seconds(plain[0])} (`{plain[1].contender.name}`), {plain[0] / small[0]:.1f} times as long{losing}."
    )


def cell(here: OverLink | None) -> str:
    if here is None or here.busy:
        return "not measured yet"
    return seconds(here.time) if here.to_target or here.missed else "not trained yet"


def readme(found: Figures) -> str:
    """Returns the README's section: six rows, a picture, and where compression does not pay.
    Returns "" until a link was measured on an idle machine."""
    if not any(found.ranking(link) and not found.busy(link) for link in plan.LINKS):
        return ""
    header = [
        "contender",
        *(f"to the target at {link}" for link in plan.LINKS),
        "sent per step at 100mbit",
    ]
    lines = []
    for row in (found.row(name) for name in README_ROWS):
        assert row is not None
        sent = row.links.get("100mbit")
        times = [cell(row.links.get(link)) for link in plan.LINKS]
        lines.append(
            [
                row.contender.name,
                *times,
                f"{sent.bytes_sent / 1e3:,.0f} kB" if sent else "not measured yet",
            ]
        )
    target = "not measured yet" if found.target is None else f"{found.target:.2f}"
    seeds = sorted({len(row.curves) for row in found.rows if row.curves}) or [0]
    trained = " to ".join(dict.fromkeys(map(str, (seeds[0], seeds[-1]))))
    return "\n".join(
        [
            "### Against other tools",
            "",
            f"Time until a small GPT has a held-out loss of {target}, which DDP reaches at "
            f"{100 * plan.TARGET_AT:.0f} % of its training; {trained} seed{'' if trained == '1' else 's'}, "
            f"{plan.RANKS} ranks on two cores.",
            f"The table has {len(lines)} of {len(found.rows)} contenders; the lines below it are about all.",
            "",
            table(header, lines),
            "",
            "![loss over seconds at 100 Mbit](docs/peers/gpt-loss-100mbit.svg)",
            "",
            text(found),
            "",
            "`make peers` writes this section and [docs/peers.md](docs/peers.md), with all contenders, "
            "their settings, and the ones that failed.",
        ]
    )
