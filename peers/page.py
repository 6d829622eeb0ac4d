"""Writes docs/peers.md, its charts, and the section of the README."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from reproduce.page import cpu, seconds, table, update_between, wrapped

from . import charts, verdicts
from . import contenders as plan
from .contenders import COMPUTE, PEER, Part
from .figures import Figures, OverLink, Row, figures
from .store import Store

NOT_YET = "not measured yet"

OPENING = """# Against the tools that people use now

Written by `make peers` on {date}; {machine}, {ranks} ranks, torch 2.13, on the CPU.
The same command continues a run that was stopped; a figure that it has not reached yet is *{not_yet}*.
All results are in [results.json](peers/results.json).

**{ranks} ranks share {cores} cores.**
A step computes about {crowd:g} times longer than on machines of their own, so an exchange has more time to hide behind the computation, and weighs less.
Encoding has no core of its own either: every millisecond of it lengthens the step of all ranks.
So utilisation is higher here than on {ranks} machines with the same links, and methods that compute much look worse.

**Links.** Every rank has a network namespace with an Ethernet device, and a bridge joins them.
`tc tbf` limits each link in both directions, with a burst of 2 ms.
Before and after the contenders of a link are timed, TCP connections into every rank measure the rate, which must be within 3 %.
*loopback* is the loopback interface of one namespace.
There is no latency beside that of the machine: the kernel has no `netem`, and the delay of thinreduce's own `link=` can't be applied to the others.
So the rows *100mbit* and *20mbit* are not the links of a wide-area network, on which the number of messages of a contender counts too.

**Time to target.** The target is the mean loss on held-out data that DDP reaches at {target_at:.0f} % of its training.
The loss over the steps of a contender does not depend on the link, so every contender is trained once per seed, on the loopback interface, for {steps} steps,
and {timed} steps are timed per link ({thin} on 100mbit and 20mbit, without local steps), after {warmup} untimed ones and with other measurements stopped.
The time to the target is steps × seconds per step.
`auto` has {auto_warmup} untimed steps, because its trials come first.
`auto` chooses by the link, so it is trained on every link; other programs ran on the machine then, which may have changed its choices.
Contenders with local steps are trained for {local_steps} steps with the same schedule, stretched, because they need more of them.
The loss is evaluated every {every} steps ({local} with local steps), and the steps between two evaluations are interpolated.

**Figures.** *utilisation*: the time of a step that only computes, on all ranks at once, divided by the time of the step.
*sent*: bytes per step and rank that left through the interface, headers and acknowledgements included;
on loopback the mean of the ranks, otherwise the busiest.
*memory*: the largest resident memory of a rank's process, without processes that it starts; of this {base} is torch and the network.
*vs bf16*: the time of `{baseline}`, the baseline, divided by that of the row.
± is half the range over the seeds.
*cores of other programs*: the processor time that was not the ranks' own while steps were timed, the kernel's work for the network included.
Above {busy} the times are too long, and the next `make peers` takes them again.
"""


def machine(store: Store) -> str:
    known = store.content["machine"]
    return f"{known.get('cpu') or cpu()}, {known.get('cores', '?')} cores"


def to_target(row: Row, link: str) -> str:
    here = row.links.get(link)
    if here is None:
        missed = row.steps and all(steps is None for steps in row.steps)
        return "not reached" if missed else NOT_YET
    if not here.to_target:
        return "not reached" if here.missed else "not trained yet"
    text = seconds(sum(here.to_target) / len(here.to_target))
    if len(here.to_target) > 1:
        text += f" ± {here.spread / 2:.1f}"
    if here.missed:
        text += f", {here.missed} of {here.missed + len(here.to_target)} seeds not reached"
    return text


def against(here: OverLink | None, baseline: OverLink | None) -> str:
    if not here or not baseline or not here.time or not baseline.time:
        return ""
    return f"{baseline.time / here.time:.2f}x"


def steps_text(row: Row) -> str:
    if not row.steps:
        return NOT_YET
    return ", ".join("not reached" if one is None else f"{one:.0f}" for one in row.steps)


def last_loss(row: Row) -> str:
    return ", ".join(f"{curve[-1][1]:.3f}" for curve in row.curves.values()) or NOT_YET


def sent_text(row: Row) -> str:
    """Returns the bytes per step, over all links: acknowledgements differ a little."""
    counts = [one.bytes_sent / 1e3 for one in row.links.values()]
    ends = dict.fromkeys(f"{one(counts):,.0f}" for one in (min, max)) if counts else {}
    return f"{' to '.join(ends)} kB" if ends else ""


def measured(found: Figures) -> list[Row]:
    return [row for row in found.rows if row.links or row.curves]


def missing(found: Figures) -> str:
    """Names the contenders of which there is no result at all."""
    names = [
        row.contender.name for row in found.rows if not (row.links or row.curves or row.errors)
    ]
    return wrapped(f"Not measured yet: {', '.join(names)}.") if names else ""


def time_table(found: Figures) -> str:
    baseline = found.baseline()
    header = ["contender"]
    for link in plan.LINKS:
        header += [link, "vs bf16"]
    lines = []
    for row in measured(found):
        line = [row.contender.name]
        for link in plan.LINKS:
            here = row.links.get(link)
            line += [to_target(row, link), against(here, baseline and baseline.links.get(link))]
        lines.append(line)
    return table(header, lines)


def step_table(found: Figures) -> str:
    header = ["contender", "steps to target, per seed", "last loss, per seed"]
    for link in plan.LINKS:
        header += [f"step at {link}", "utilisation"]
    header += ["sent", "memory"]
    lines = []
    for row in measured(found):
        line = [row.contender.name, steps_text(row), last_loss(row)]
        for link in plan.LINKS:
            here = row.links.get(link)
            line.append(f"{1e3 * here.step:.0f} ms" if here else NOT_YET)
            line.append(f"{100 * here.utilisation:.0f} %" if here and here.utilisation else "")
        line.append(sent_text(row))
        line.append(
            f"{max(one.memory_mb for one in row.links.values()):.0f} MB" if row.links else ""
        )
        lines.append(line)
    return table(header, lines)


ABSENT = """PCCL and DeMo are not among them, because pip has no package of theirs.
The authors of DeMo publish a file; the `pccl` of the package index is an empty placeholder of others."""


def failure_table(found: Figures) -> str:
    lines = [
        [row.contender.name, row.contender.package, f"`{error}`"]
        for row in found.rows
        for error in row.errors
    ]
    return table(["contender", "package", "error"], lines) if lines else "None."


def settings_table(store: Store) -> str:
    lines = []
    for one in plan.CONTENDERS:
        version = store.content["packages"].get(one.package, {}).get("version", "")
        package = f"{one.package} {version}".strip() if one.group == PEER else ""
        lines.append([one.name, one.group, one.note, package])
    return table(["contender", "of", "setting", "package"], lines)


def link_table(store: Store, workload: str) -> str:
    """Says what the links carried, and whether other programs ran meanwhile."""
    lines = []
    for link, rate in plan.LINKS.items():
        kept = [store.found(Part(workload, one, link)) or {} for one in plan.CONTENDERS]
        rates = [rate / 1e6 for one in kept for rate in one.get("link_rates", [])]
        carried = f"{min(rates):.1f} to {max(rates):.1f} Mbit/s" if rates else NOT_YET
        cores = [one["other_cores"] for one in kept if "other_cores" in one]
        others = f"{min(cores):.2f} to {max(cores):.2f}" if cores else NOT_YET
        lines.append([link, carried if rate else "not limited", others])
    return table(["link", "measured per rank", "cores of other programs"], lines)


def choices(found: Figures) -> str:
    return "\n".join(
        f"`{row.contender.name}` chose at {link}: {', '.join(f'`{one}`' for one in chosen)}."
        for row in found.rows
        for link, chosen in row.chosen.items()
    )


def section(store: Store, found: Figures, pictures: list[str]) -> str:
    heading = f"\n## {found.workload}: {plan.WORKLOADS[found.workload]}\n"
    if not measured(found):
        return f"{heading}\nNot measured yet.\n"
    target = NOT_YET if found.target is None else f"{found.target:.3f}"
    compute = NOT_YET if found.compute is None else f"{1e3 * found.compute:.0f} ms"
    shown = "\n\n".join(f"![{name.removesuffix('.svg')}](peers/{name})" for name in pictures)
    return f"""{heading}
Loss of the target: {target}.
Time of {COMPUTE.note}: {compute}.

{verdicts.text(found)}

### Time to the target

{time_table(found)}

{missing(found)}

{shown}

### Steps

{step_table(found)}

{choices(found)}

### Links as they were measured

{link_table(store, found.workload)}

### Contenders that failed

{failure_table(found)}
"""


def write(folder: Path, store: Store) -> Path:
    drawn = folder / "peers"
    drawn.mkdir(parents=True, exist_ok=True)
    found = {name: figures(store, name) for name in plan.WORKLOADS}
    baseline = found["gpt"].baseline()
    alone = store.found(Part("gpt", COMPUTE, "loopback")) or {}
    cores = store.content["machine"].get("cores", 2)
    text = OPENING.format(
        date=date.today().isoformat(), machine=machine(store), ranks=plan.RANKS, not_yet=NOT_YET, busy=plan.BUSY,
        cores=cores, crowd=plan.RANKS / cores, target_at=100 * plan.TARGET_AT, steps=plan.STEPS,
        local_steps=plan.LOCAL_STEPS, timed=plan.TIMED, thin=plan.TIMED_THIN, warmup=plan.WARMUP, auto_warmup=3 * plan.WARMUP, every=plan.EVALUATE_EVERY,
        local=plan.LOCAL, baseline=baseline.contender.name if baseline else plan.BASELINES[0], base=f"{alone['memory_mb']:.0f} MB" if "memory_mb" in alone else "a part",
    )  # fmt: skip
    for one in found.values():
        text += section(store, one, charts.write(drawn, one))
    text += f"\n## Settings\n\n{settings_table(store)}\n\n{ABSENT}\n"
    page = folder / "peers.md"
    page.write_text(text)
    readme = folder.parent / "README.md"
    if readme.exists() and "<!-- peers: written" in readme.read_text():
        update_between(readme, "peers", "peers", verdicts.readme(found["gpt"]))
    return page
