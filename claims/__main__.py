"""`make claims`: measures the papers' claims and writes docs/claims.md.

Every result is kept in build/claims, so the same command continues after a stop. A claim that was
not measured here keeps the row that docs/claims/results.json has for it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from reproduce.runs import Failed

from . import page
from .bench import Bench
from .claim import Claim
from .page import CLAIMS
from .rows import committed, keep, measured_here, newest, row_file

NAMES = [claim.name for claim in CLAIMS]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make claims", description=__doc__)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/thinreduce"))
    parser.add_argument("--folder", type=Path, default=Path("build/claims"), help="results so far")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for claims.md")
    parser.add_argument(
        "--docs", type=Path, default=Path("docs"), help="folder of the results that are committed"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="measure this claim only; may be repeated"
    )
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    parser.add_argument("--again", action="store_true", help="delete the results so far")
    options = parser.parse_args()
    for name in options.only or ():
        if name not in NAMES:
            parser.error(f"there is no claim '{name}'; the claims are {', '.join(NAMES)}")
    return options


def forget(folder: Path, names: list[str]) -> None:
    """Deletes the results of these claims."""
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
        row_file(folder, name).unlink(missing_ok=True)


def measure(bench: Bench, claims: list[Claim]) -> None:
    """Measures the claims in turn; estimates the time left from their seconds on two cores."""
    start, planned, pace = time.monotonic(), 0.0, 1.0
    for number, claim in enumerate(claims, 1):
        left = pace * sum(one.seconds for one in claims[number - 1 :]) / 60
        print(f"[{number}/{len(claims)}, about {left:.0f} min left] {claim.name}", flush=True)
        bench.claim = claim.name
        keep(bench.folder, claim.name, claim.measure(bench))
        planned += claim.seconds
        pace = (time.monotonic() - start) / planned


def main() -> int:
    options = arguments()
    wanted = options.only or NAMES
    if options.again:
        forget(options.folder, wanted)
    try:
        if not options.page:
            bench = Bench(options.program, options.folder)
            chosen = [claim for claim in CLAIMS if claim.name in wanted and claim.seconds]
            measure(bench, chosen)
    except Failed as failure:
        print(f"claims: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("claims: stopped; the same command continues from here", file=sys.stderr)
        return 1
    rows = newest(
        committed(options.docs / "claims" / "results.json"), measured_here(options.folder, NAMES)
    )
    written = page.write(options.out, rows, options.docs / "results")
    print(f"wrote {written}")
    return 0


sys.exit(main())
