"""Writes docs/claims.md and the results beside its charts."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

from reproduce.page import cpu, table

from . import dither, fft, gradiveq, sketch, variance
from .claim import NOT_YET, Claim, Shown
from .recordings import Json

CLAIMS = (*gradiveq.CLAIMS, *fft.CLAIMS, *variance.CLAIMS, *dither.CLAIMS, *sketch.CLAIMS)

OPENING = """# The claims of the papers

Written by `make claims` on {date}; {cpu}, {cores} cores.
One row per claim of the five papers: the command that measures it, what it found, and a verdict.
A verdict is *holds*, *holds in part*, *does not hold* or *not shown yet*; a program derives it from the figures, by the rule at the end of the claim's section.
*Not shown yet* means that `make claims` has not reached the row (*not measured yet*), or that a training is missing, whose command the section names.
Figures are of one run and one seed unless said otherwise.
Accuracies differ by about 0.7 points between seeds, and times by a third between runs on this machine: smaller differences are noise.
Times with `--simulate` are virtual: every rank has a core and a link of its own ([scaling](scaling.md)); other programs ran on the machine meanwhile.
"""


def section(claim: Claim, shown: Shown) -> str:
    lines = [
        f"### {claim.name}",
        "",
        f"{claim.claim[0].upper()}{claim.claim[1:]}: **{shown.verdict}**.",
    ]
    lines += [f"Found: {shown.figure}.", "", "```sh", *claim.commands, "```"]
    lines += [shown.text.rstrip()] if shown.text else []
    for chart in shown.charts:
        lines += ["", f"![{claim.name}](claims/{chart})"]
    if claim.rule:
        lines += ["", f"The verdict: {claim.rule}."]
    if claim.missing:
        lines += ["", "Not trained yet:", "", "```sh", *claim.missing, "```"]
    return "\n".join(lines)


def write(folder: Path, found: dict[str, Json]) -> Path:
    charts = folder / "claims"
    charts.mkdir(parents=True, exist_ok=True)
    shown = {
        claim.name: claim.show(found.get(claim.name, {}), charts)
        if claim.name in found or not claim.seconds
        else Shown(NOT_YET, "not measured yet; `make claims` measures it")
        for claim in CLAIMS
    }
    rows = [
        [claim.system, f"[{claim.claim}](#{claim.name})", f"**{shown[claim.name].verdict}**", shown[claim.name].figure, f"`{claim.commands[-1]}`"]
        for claim in CLAIMS
    ]  # fmt: skip
    parts = [
        OPENING.format(date=date.today().isoformat(), cpu=cpu(), cores=os.cpu_count()),
        table(["system", "claim", "verdict", "found", "command"], rows),
    ]
    for system in dict.fromkeys(claim.system for claim in CLAIMS):
        parts.append(f"\n## {system}")
        parts += ["\n" + section(one, shown[one.name]) for one in CLAIMS if one.system == system]
    page = folder / "claims.md"
    page.write_text("\n".join(parts) + "\n")
    (charts / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    return page
