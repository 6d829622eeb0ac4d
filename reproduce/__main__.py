"""`make reproduce`: trains with every method, measures, and writes docs/results.md.

What is done is kept in runs/reproduce: stopped, it goes on where it was. `--again` starts over.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from . import headlines, measures, page
from . import settings as plan
from .runs import Failed, Program, Progress, fetch

TIMED_STEPS = 30
RECORDED_STEPS = 40
STEPS_PER_EPOCH = 50_000 // (32 * plan.RANKS)


def reproduce(program: Program, out: Path, timed_steps: int, recorded_steps: int) -> None:
    middle = max(int(program.epochs * STEPS_PER_EPOCH / 2), 1)
    parts = Progress(2 * len(plan.SETTINGS) + 4)
    parts.begin("data")
    fetch(program)
    for setting in plan.SETTINGS:
        parts.begin(f"train {setting.name}: {setting.spec}, {setting.optimizer}")
        program.train(setting, middle)
    for setting in plan.SETTINGS:
        parts.begin(f"time {setting.name} over {' and '.join(plan.LINKS)}")
        for link in plan.LINKS:
            program.time_steps(setting, link, timed_steps)
    rows = measures.rows(program, timed_steps)
    parts.begin("error against size")
    gradients = str(program.record_gradients(plan.SETTINGS[0], recorded_steps))
    distortion = measures.rate_distortion(program, gradients)
    parts.begin("more ranks")
    scaling = measures.scaling(program)
    parts.begin("the papers' headlines")
    by_name = {row.setting.name: row for row in rows}
    found = page.Found(
        rows=rows,
        heads=headlines.headlines(program, by_name, gradients),
        goals=headlines.targets(by_name),
        distortion=distortion,
        scaling=scaling,
    )
    written = page.write(out, found, page.Extent(program.epochs, recorded_steps, timed_steps))
    readme = out.parent / "README.md"
    if readme.exists():
        page.update_readme(readme, rows)
    print(page.speak(rows, found.goals))
    print(f"written: {written}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make reproduce", description=__doc__)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/thinreduce"))
    parser.add_argument("--folder", type=Path, default=Path("runs/reproduce"), help="what was run so far")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where results.md is written")
    parser.add_argument("--epochs", type=float, default=plan.EPOCHS)
    parser.add_argument("--again", action="store_true", help="forget what was run so far")
    options = parser.parse_args()
    if options.again:
        shutil.rmtree(options.folder, ignore_errors=True)
    try:
        reproduce(Program(options.program, options.folder, options.epochs), options.out, TIMED_STEPS, RECORDED_STEPS)
    except Failed as failure:
        print(f"reproduce: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("reproduce: stopped; the same command goes on from here", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
