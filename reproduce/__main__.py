"""`make reproduce`: trains with every method, measures, and writes docs/results.md.

Results are kept in runs/reproduce, so the same command continues after a stop. `--again` deletes
them first.
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


def reproduce(program: Program, out: Path, *, only_finished: bool) -> None:
    middle = max(int(program.epochs * STEPS_PER_EPOCH / 2), 1)
    settings = [one for one in plan.SETTINGS if program.finished(one) or not only_finished]
    absent = [name for name in headlines.NEEDED if name not in {one.name for one in settings}]
    if absent:
        raise Failed(
            f"these settings are not trained yet, and the page needs them: {', '.join(absent)}; "
            "run without --only-finished"
        )
    parts = Progress(2 * len(settings) + 4)
    parts.begin("data")
    fetch(program)
    for setting in settings:
        parts.begin(f"train {setting.name}: {setting.spec}, {setting.optimizer}")
        program.train(setting, middle)
    for setting in settings:
        parts.begin(f"time {setting.name} over {' and '.join(plan.LINKS)}")
        for link in plan.LINKS:
            program.time_steps(setting, link, TIMED_STEPS)
    rows = measures.rows(program, settings, TIMED_STEPS)
    parts.begin("error against size")
    gradients = str(program.record_gradients(plan.SETTINGS[0], RECORDED_STEPS))
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
    written = page.write(out, found, page.Extent(program.epochs, RECORDED_STEPS, TIMED_STEPS))
    readme = out.parent / "README.md"
    if readme.exists():
        page.update_between(readme, "results", "reproduce", page.short_table(rows))
    print(page.speak(rows, found.goals))
    print(f"wrote {written} after {parts.minutes:.0f} minutes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make reproduce", description=__doc__)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/thinreduce"))
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/reproduce"), help="results so far"
    )
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for results.md")
    parser.add_argument("--epochs", type=float, default=plan.EPOCHS)
    parser.add_argument(
        "--only-finished", action="store_true", help="leave out settings that are not trained yet"
    )
    parser.add_argument("--again", action="store_true", help="delete the results so far")
    options = parser.parse_args()
    if options.again:
        shutil.rmtree(options.folder, ignore_errors=True)
    try:
        program = Program(options.program, options.folder, options.epochs)
        reproduce(program, options.out, only_finished=options.only_finished)
    except Failed as failure:
        print(f"reproduce: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("reproduce: stopped; the same command continues from here", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
