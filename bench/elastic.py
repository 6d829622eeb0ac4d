#!/usr/bin/env python3
"""Kills, adds and sends away ranks of `thinreduce train --elastic` at random, and measures how long
the training stands still.

    bench/elastic.py --events 200

A rank is killed (SIGKILL), leaves (SIGTERM) or is added (SIGUSR1 to the launcher), 2 to 8 at a
time. A stop is the time from the signal, for a kill or a leave, until a step with the other ranks
is in steps.jsonl. The ranks compare their parameters every 10 steps, so a run that ends well had no
wrong mean.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

LONGEST = 120.0  # seconds without progress that count as a hang


class Run:
    def __init__(self, program: str, folder: Path, ranks: int, spec: str) -> None:
        self.folder = folder
        command = [program, "train", "--elastic", "--model", "fc-300-100", "--method", spec]
        command += ["--ranks", str(ranks), "--steps", "1000000", "--out", str(folder), "--json"]
        command += ["--check-every", "10", "--evaluate-samples", "100"]
        self.launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def processes(self) -> list[int]:
        pid = self.launcher.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def steps(self) -> int:
        file = self.folder / "steps.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def ranks(self) -> int:
        try:
            return int(json.loads((self.folder / "config.json").read_text())["ranks"])
        except (OSError, ValueError):  # not there, or being written
            return 0

    def wait_for(self, holds) -> float:
        """Returns the seconds until `holds`."""
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > LONGEST or self.launcher.poll() is not None:
                self.launcher.kill()
                raise SystemExit(f"the run does not go on: {self.launcher.communicate()[1]!r}")
            time.sleep(0.005)
        return time.monotonic() - started

    def settle(self, ranks: int) -> None:
        """Waits until the world has this number of ranks and trains."""
        self.wait_for(lambda: self.ranks() == ranks)
        steps = self.steps()
        self.wait_for(lambda: self.steps() > steps + 5)

    def stop(self) -> dict:
        for process in self.processes():
            subprocess.run(["kill", "-INT", str(process)], check=False)
        _, err = self.launcher.communicate(timeout=LONGEST)
        if self.launcher.returncode != 1:  # interrupted
            raise SystemExit(f"the run failed: {err!r}")
        return json.loads((self.folder / "summary.json").read_text())


def event(run: Run, ranks: int, rng: random.Random) -> tuple[str, int, float]:
    """Returns what happened, the number of ranks afterwards, and the seconds of the stop."""
    what = rng.choice(["kill", "kill", "leave", "add"])
    if (ranks == 2 and what == "leave") or (ranks == 8 and what == "add"):
        what = "kill"
    if what == "add":
        run.launcher.send_signal(signal.SIGUSR1)
        run.settle(ranks + 1)
        return what, ranks + 1, 0.0
    process = rng.choice(run.processes())
    before = run.steps()
    subprocess.run(["kill", "-KILL" if what == "kill" else "-TERM", str(process)], check=True)
    # A step or two may still end with the rank in it.
    seconds = run.wait_for(lambda: run.ranks() == ranks - 1 and run.steps() > before)
    if what == "kill":
        run.settle(ranks)  # a new one takes its place
        return what, ranks, seconds
    run.settle(ranks - 1)
    return what, ranks - 1, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/release/bin/thinreduce")
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--method", default="topk:density=0.05")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    counts: dict[str, int] = {}
    stops: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        ranks = 4
        run = Run(given.program, Path(folder) / "run", ranks, given.method)
        run.settle(ranks)
        for _ in range(given.events):
            what, ranks, seconds = event(run, ranks, rng)
            counts[what] = counts.get(what, 0) + 1
            if what != "add":
                stops.append(seconds)
        summary = run.stop()
    stops.sort()
    print(f"{counts}; {summary['steps']} steps; all ranks had the same parameters")
    changes = [one["seconds"] for one in summary["changes"]]
    print(
        f"{len(changes)} changes of the world that the last rank 0 has seen: "
        f"max {max(changes):.2f} s"
    )
    print(
        f"stops: median {stops[len(stops) // 2]:.2f} s, "
        f"95 % {stops[len(stops) * 95 // 100]:.2f} s, max {stops[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
