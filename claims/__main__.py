"""`make claims`: measures the papers' claims and writes docs/claims.md.

Every result is kept in build/claims, so the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from reproduce.runs import Failed

from . import page
from .bench import Bench
from .claim import Claim
from .page import CLAIMS

NAMES = [claim.name for claim in CLAIMS]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make claims", description=__doc__)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/thinreduce"))
    parser.add_argument("--folder", type=Path, default=Path("build/claims"), help="results so far")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for claims.md")
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


def result(folder: Path, name: str) -> Path:
    """Returns the file that holds a claim's result."""
    return folder / f"{name}.json"


def forget(folder: Path, names: list[str]) -> None:
    """Deletes the results of these claims."""
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
        result(folder, name).unlink(missing_ok=True)


def measure(bench: Bench, claims: list[Claim]) -> None:
    """Measures the claims in turn; estimates the time left from their seconds on two cores."""
    start, planned, pace = time.monotonic(), 0.0, 1.0
    for number, claim in enumerate(claims, 1):
        left = pace * sum(one.seconds for one in claims[number - 1 :]) / 60
        print(f"[{number}/{len(claims)}, about {left:.0f} min left] {claim.name}", flush=True)
        bench.claim = claim.name
        found = claim.measure(bench)
        result(bench.folder, claim.name).write_text(json.dumps(found, indent=1) + "\n")
        planned += claim.seconds
        if planned:
            pace = (time.monotonic() - start) / planned


def main() -> int:
    options = arguments()
    wanted = options.only or NAMES
    if options.again:
        forget(options.folder, wanted)
    try:
        if not options.page:
            bench = Bench(options.program, options.folder)
            measure(bench, [claim for claim in CLAIMS if claim.name in wanted])
    except Failed as failure:
        print(f"claims: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("claims: stopped; the same command continues from here", file=sys.stderr)
        return 1
    files = {name: result(options.folder, name) for name in NAMES}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    print(f"wrote {page.write(options.out, found)}")
    return 0


sys.exit(main())
