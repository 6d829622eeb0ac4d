"""Writes docs/claims.md and the results beside its charts."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import date
from pathlib import Path

from reproduce.page import table, wrapped

from . import dqsg, fft, gradiveq, sketch, variance
from .claim import NOT_YET, Claim, Shown
from .rows import Row
from .wording import code

CLAIMS = (*gradiveq.CLAIMS, *fft.CLAIMS, *variance.CLAIMS, *dqsg.CLAIMS, *sketch.CLAIMS)

OPENING = """# The claims of the papers

Written by `make claims` on {date}; each section names the date and the CPU of its measurements.
The five papers make these claims; each row has the claim, a verdict, the figure that decides it, and the command that measured it.
A program derives the verdict from the figures by the rule at the end of the claim's section: *holds*, *holds in part*, *does not hold* or *not shown yet*.
*Not shown yet* means that `make claims` has not measured the row, or that a training is missing; the section then names the training's command.
Figures are of one run and one seed unless the page says otherwise.
Accuracies differ by about 0.7 points between seeds, and times by a third between runs on this machine: smaller differences are noise.
Times with `--simulate` are virtual: every rank has a core and a link of its own ([scaling](scaling.md)); other programs ran on the machine meanwhile.
A ratio such as 3.6x compares with fp32.
"""


def shown(claim: Claim, row: Row | None, charts: Path) -> Shown:
    """Returns the claim's entry, also if it was not measured yet."""
    if claim.seconds and row is None:
        return Shown(NOT_YET, "not measured yet; `make claims` measures it")
    return claim.show(row.found if row else {}, charts)


def line(claim: Claim, entry: Shown) -> list[str]:
    link = f"[{claim.claim}](#{claim.name})"
    return [claim.system, link, f"**{entry.verdict}**", entry.figure, code(claim.commands[-1])]


def section(claim: Claim, entry: Shown, row: Row | None) -> str:
    lines = [f"### {claim.name}", ""]
    lines += [f"The claim: {claim.claim}.", f"The verdict: **{entry.verdict}**."]
    lines += [wrapped(f"Found: {entry.figure}.")]
    lines += [f"Measured on {row.date}: {row.cpu}."] if row else []
    lines += ["", "```sh", *claim.commands, "```"]
    lines += [entry.text.rstrip()] if entry.text else []
    for chart in entry.charts:
        lines += ["", f"![{claim.name}](claims/{chart})"]
    if claim.rule:
        lines += ["", "The rule:", claim.rule.strip()]
    if claim.missing:
        lines += ["", "Not trained yet:", "", "```sh", *claim.missing, "```"]
    return "\n".join(lines)


def write(folder: Path, rows: dict[str, Row]) -> Path:
    """Writes claims.md, its charts and the results in `folder`; returns the page's path."""
    charts = folder / "claims"
    charts.mkdir(parents=True, exist_ok=True)
    entries = {claim.name: shown(claim, rows.get(claim.name), charts) for claim in CLAIMS}
    parts = [
        OPENING.format(date=date.today().isoformat()),
        table(
            ["system", "claim", "verdict", "found", "command"],
            [line(claim, entries[claim.name]) for claim in CLAIMS],
        ),
    ]
    for system in dict.fromkeys(claim.system for claim in CLAIMS):
        parts.append(f"\n## {system}")
        for claim in CLAIMS:
            if claim.system == system:
                parts.append("\n" + section(claim, entries[claim.name], rows.get(claim.name)))
    page = folder / "claims.md"
    page.write_text("\n".join(parts) + "\n")
    kept = {name: asdict(row) for name, row in rows.items()}
    (charts / "results.json").write_text(json.dumps(kept, indent=1) + "\n")
    return page
