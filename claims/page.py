"""Writes docs/claims.md and the results beside its charts."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import date
from pathlib import Path

from reproduce.page import table, wrapped

from . import dqsg, fft, gradiveq, sketch, variance
from .claim import NOT_YET, Claim, Context, Shown
from .noise import SEED_NOISE, SEEDS
from .quoted import Quoted
from .rows import Row
from .trained import Trained
from .wording import code

CLAIMS = (*gradiveq.CLAIMS, *fft.CLAIMS, *variance.CLAIMS, *dqsg.CLAIMS, *sketch.CLAIMS)

OPENING = """# The claims of the papers

Written by `make claims` on {date}; each section names the date and the CPU of its measurements.
The five papers make these claims; each row has the claim, a verdict, the figure that decides it, and the command that measured it.
A program derives the verdict from the figures by the rule at the end of the claim's section: *holds*, *holds in part*, *does not hold* or *not shown yet*.
*Not shown yet* means that `make claims` has not measured the row, or that a training is missing; the section then names the training's command.
Figures are of one run and one seed unless the page says otherwise.
Times differ by about a third between runs on the machines used: smaller differences are noise.
The accuracies of two trainings that only have different seeds differ by about {noise} points.
So a difference of accuracies, as the mean over n seeds, is noise up to {noise}/√n points: 0.7 with one seed, 0.5 with two, 0.4 with three.
A training *clearly* loses accuracy if it loses more than what the claim allows plus twice the noise; between noise and that, a claim holds in part.
With fewer than {seeds} seeds a claim about accuracy holds in part at most.
Times with `--simulate` are virtual: every rank has a core and a link of its own ([scaling](scaling.md)); other programs ran on the machine meanwhile.
A ratio such as 3.6x compares with fp32.
"""


def shown(claim: Claim, row: Row | None, context: Context) -> Shown:
    """Returns the claim's entry, also if it was not measured yet."""
    if row is None and not claim.trainings:
        return Shown(NOT_YET, "not measured yet")
    return claim.show(row.found if row else {}, context)


def line(claim: Claim, entry: Shown) -> list[str]:
    link = f"[{claim.claim}](#{claim.name})"
    return [claim.system, link, f"**{entry.verdict}**", entry.figure, code(claim.commands[-1])]


def section(claim: Claim, entry: Shown, row: Row | None, untrained: tuple[str, ...]) -> str:
    lines = [f"### {claim.name}", ""]
    lines += [f"The claim: {claim.claim}.", f"The verdict: **{entry.verdict}**."]
    lines += [wrapped(f"Found: {entry.figure}.")]
    if row:
        lines += [f"Measured on {row.date}: {row.cpu}."]
    elif claim.seconds:
        lines += ["`make claims` has not made its measurements yet."]
    lines += ["", "```sh", *claim.commands, "```"]
    lines += [entry.text.rstrip()] if entry.text else []
    for chart in entry.charts:
        lines += ["", f"![{claim.name}](claims/{chart})"]
    if claim.rule:
        lines += ["", "The rule:", claim.rule.strip()]
    if untrained:
        lines += ["", "Not trained yet:", "", "```sh", *untrained, "```"]
    return "\n".join(lines)


def write(folder: Path, rows: dict[str, Row], results: Path) -> Path:
    """Writes claims.md, its charts and the rows in `folder`; returns the page's path.

    `results` is the folder of results.json and long.json, the trainings.
    """
    charts = folder / "claims"
    charts.mkdir(parents=True, exist_ok=True)
    trained = Trained.read(results / "long.json")
    context = Context(charts, trained, Quoted.read(results / "results.json"))
    entries = {claim.name: shown(claim, rows.get(claim.name), context) for claim in CLAIMS}
    parts = [
        OPENING.format(date=date.today().isoformat(), noise=SEED_NOISE, seeds=SEEDS),
        table(
            ["system", "claim", "verdict", "found", "command"],
            [line(claim, entries[claim.name]) for claim in CLAIMS],
        ),
    ]
    for system in dict.fromkeys(claim.system for claim in CLAIMS):
        parts.append(f"\n## {system}")
        for claim in CLAIMS:
            if claim.system == system:
                untrained = (*trained.missing(claim.trainings), *claim.missing)
                entry, row = entries[claim.name], rows.get(claim.name)
                parts.append("\n" + section(claim, entry, row, untrained))
    page = folder / "claims.md"
    page.write_text("\n".join(parts) + "\n")
    kept = {name: asdict(row) for name, row in rows.items()}
    (charts / "results.json").write_text(json.dumps(kept, indent=1) + "\n")
    return page
