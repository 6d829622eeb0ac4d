"""Kills, stops and cuts off ranks, alters their bytes, fills their disk, and checks what they say.

    tests/chaos [--count N] [SCENARIO...]

Every trial has a seed of its own, and its result is written at once: a run that was interrupted
goes on where it stopped. Exits with 1 if a trial shows a hang, a wrong mean, or a survivor that
does not name the culprit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

# One thread per rank, also of numpy's and torch's libraries, which read this when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import clock
import faults
import growth
import page
import saving
from trial import Trial


class Scenario(NamedTuple):
    title: str
    count: int  # trials; a long run is one trial, with this many rounds
    run: Callable[..., Trial]  # takes a random.Random, or the number of rounds of a long run
    long: bool = False


_DDP = "kill -9 of a rank that trains with DDP"
SCENARIOS = {
    "kill": Scenario("kill -9 of a rank that reduces arrays", 300, faults.kill),
    "kill-ddp": Scenario(_DDP, 75, faults.kill_ddp),
    "kill-workers": Scenario(
        f"{_DDP} and has 2 DataLoader workers", 75, partial(faults.kill_ddp, workers=2)
    ),
    "kill-torch": Scenario(
        f"{_DDP}, `transport=\"torch\"`", 50, partial(faults.kill_ddp, transport="torch")
    ),
    "stop": Scenario(f"SIGSTOP of a rank, `timeout={faults.SILENCE}`", 40, faults.stop),
    "cut": Scenario(f"a rank is cut off, `timeout={faults.SILENCE}`", 40, faults.cut),
    "flip": Scenario("one bit is flipped on the way", 1000, partial(faults.alter, kind="flip")),
    "drop": Scenario("1 to 64 bytes are dropped", 100, partial(faults.alter, kind="drop")),
    "duplicate": Scenario(
        "1 to 64 bytes come twice", 100, partial(faults.alter, kind="duplicate")
    ),
    "clock": Scenario("the wall clocks of all ranks jump", 50, clock.jump),
    "save-kill": Scenario("kill -9 of a training that saves", 200, saving.kill),
    "save-full": Scenario("the disk is full while a training saves", 40, saving.fill_disk),
    "steps": Scenario("steps that reduce arrays, 2 ranks", 10_000, growth.steps_of_arrays, True),
    "steps-ddp": Scenario(
        "steps of DDP, 2 ranks with 2 DataLoader workers each", 10_000, growth.steps_of_ddp, True
    ),
    "sessions": Scenario("sessions of one process", 1_000, growth.sessions, True),
}  # fmt: skip

Results = dict[str, list[Trial]]


def load(file: Path) -> Results:
    if not file.exists():
        return {}
    known = json.loads(file.read_text())
    return {name: [Trial(**one) for one in trials] for name, trials in known.items()}


def store(file: Path, results: Results) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = file.with_suffix(".new")
    plain = {name: [dataclasses.asdict(one) for one in all_] for name, all_ in results.items()}
    partial_file.write_text(json.dumps(plain) + "\n")
    partial_file.replace(file)


def run_trial(name: str, number: int, count: int) -> Trial:
    scenario = SCENARIOS[name]
    if scenario.long:
        return scenario.run(count)
    try:
        return scenario.run(random.Random(f"{name} {number}"))
    except RuntimeError as error:  # the ranks did not even start
        return Trial(outcome="failed to start", failure=str(error))


def run_missing(names: list[str], count: int | None, file: Path, until: float) -> Results:
    """Runs what the file lacks, and adds it there."""
    results = load(file)
    wanted = {name: count or SCENARIOS[name].count for name in names}
    for name in names:
        done = results.setdefault(name, [])
        trials = 1 if SCENARIOS[name].long else wanted[name]
        began, before = time.monotonic(), len(done)
        while len(done) < trials and time.monotonic() < until:
            trial = run_trial(name, len(done), wanted[name])
            done.append(trial)
            store(file, results)
            if trial.failure:
                print(f"\n{name} {len(done) - 1}: {trial.failure}", file=sys.stderr)
            left = (time.monotonic() - began) / (len(done) - before) * (trials - len(done))
            text = f"{name}: {len(done)} of {trials}, {left / 60:.1f} min left"
            print(f"\r{text:60}", end="", file=sys.stderr, flush=True)
        if len(done) > before:
            print(file=sys.stderr)
    return {name: results[name] for name in names if results[name]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--count", type=int, help="trials per scenario; rounds of a long run")
    parser.add_argument("--file", type=Path, default=Path("build/chaos/results.json"))
    parser.add_argument("--minutes", type=float, default=1e6, help="no new trial after so long")
    parser.add_argument("--page", type=Path, help="page to write the table to")
    arguments = parser.parse_args()
    names = arguments.scenario or list(SCENARIOS)
    for name in names:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario '{name}'; there are {', '.join(SCENARIOS)}")
    until = time.monotonic() + 60 * arguments.minutes
    results = run_missing(names, arguments.count, arguments.file, until)
    rows = [page.row(name, SCENARIOS[name].title, results[name]) for name in results]
    print("\n".join(page.table(rows)))
    if arguments.page:
        page.write(arguments.page, rows)
    return int(any(trial.failure for trials in results.values() for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
