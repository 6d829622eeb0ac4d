"""`make reproduce-long`: trains what the claims of the papers name, and keeps the results.

Results are added to docs/results/long.json as soon as a training ends; one that is in the file is
not trained again. A training that was stopped continues from its checkpoint in runs/long, so the
command may be stopped at any point.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from .long_settings import TRAININGS, Training
from .runs import Failed, Json, Program, read_lines
from .tables import table


class Results:
    """The finished trainings, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Json] = {}
        if path.exists():
            self.rows = {row["name"]: row for row in json.loads(path.read_text())["trainings"]}

    def has(self, training: Training, asked: str) -> bool:
        row = self.rows.get(training.name)
        return row is not None and row["asked"] == asked

    def add(self, row: Json) -> None:
        self.rows[row["name"]] = row
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"trainings": list(self.rows.values())}, indent=1) + "\n")
        part.rename(self.path)
        self.path.with_suffix(".md").write_text(page(self.rows))


def page(rows: dict[str, Json]) -> str:
    """Returns the table of all finished trainings."""
    lines = []
    for row in rows.values():
        base = rows.get(row["baseline"])
        lines.append(
            [
                row["name"],
                f"`{row['spec']}`",
                f"{row['model']}, {row['optimizer']}, {row['epochs']:g} epochs, seed {row['seed']}",
                f"{100 * row['accuracy']:.2f} %",
                "" if base is None else f"{100 * (row['accuracy'] - base['accuracy']):+.2f}",
                "" if base is None else f"{base['bytes_sent'] / row['bytes_sent']:.1f}x",
                f"1/{row['ratio']:.1f}",
            ]
        )
    header = [
        "training", "spec", "how", "accuracy", "points vs fp32", "fewer bytes sent", "payload",
    ]  # fmt: skip
    return f"""# Long trainings

Written by `make reproduce-long`: CIFAR-10, 4 ranks, one training per row.
The accuracy is that on all test images after the last step.
Two seeds differ by about 0.7 points; smaller differences are noise.
*fewer bytes sent* compares the bytes that a rank sends in the whole training with those of fp32.
Steps, curves and seconds are in [long.json](long.json).

{table(header, lines)}
"""


class Long:
    """Trains the plan, one training after another."""

    def __init__(self, program: Path, folder: Path, results: Path) -> None:
        self.program = Program(program, folder, 0)
        self.results = Results(results)

    def asked(self, training: Training) -> str:
        """Returns the arguments that the result depends on, every option written out."""
        arguments = " ".join(training.arguments())
        return arguments.replace(training.spec, self.program.full_spec(training.spec), 1)

    def run(self, trainings: Sequence[Training]) -> None:
        self.program.call("train", "--data", "cifar10", "--model", "resnet9", "--fetch-only")
        left = [one for one in trainings if not self.results.has(one, self.asked(one))]
        print(
            f"{len(trainings) - len(left)} of {len(trainings)} trainings are finished", flush=True
        )
        spent: dict[str, float] = {}  # minutes per training in this run, by model
        for number, training in enumerate(left, 1):
            hours = sum(_minutes(one, spent) for one in left[number - 1 :]) / 60
            place = f"[{number}/{len(left)}, about {hours:.1f} h left]"
            print(f"{place} {training.name}: {training.spec}", flush=True)
            start = time.monotonic()
            is_new = self.train(training)
            if is_new:
                spent[training.model] = (time.monotonic() - start) / 60
            row = self.row(training)
            self.results.add(row)
            print(f"    {100 * row['accuracy']:.2f} %, payload 1/{row['ratio']:.1f}", flush=True)

    def train(self, training: Training) -> bool:
        """Trains to the end; returns whether it began at the first step."""
        run = self.program.folder / training.name
        question = self.program.folder / f"{training.name}.asked"
        continues = question.exists() and question.read_text() == self.asked(training)
        if continues and self.program.steps_done(run):
            summary = run / "summary.json"
            done = summary.exists() and json.loads(summary.read_text())["status"] == "finished"
            if not done:
                self.program.call("train", "--resume", str(run))
            return False
        question.write_text(self.asked(training))
        self.program.call("train", *training.arguments(), "--out", str(run), "--overwrite")
        return True

    def row(self, training: Training) -> Json:
        run = self.program.folder / training.name
        summary = json.loads((run / "summary.json").read_text())
        curve = [
            [line["step"], round(line["accuracy"], 4), round(line["seconds"], 1)]
            for line in read_lines(run / "evaluations.jsonl")
        ]
        return {
            **asdict(training),
            "baseline": training.baseline,
            "asked": self.asked(training),
            "accuracy": summary["accuracy"],
            "steps": summary["steps"],
            "bytes_sent": summary["bytes_sent_total"],
            "ratio": summary["ratio"],
            "seconds": round(summary["seconds"], 1),
            "curve": curve,  # step, accuracy on some test images, seconds
            "finished": date.today().isoformat(),
        }


# Per training on two idle cores, by model; those of resnet20 are a guess.
MINUTES = {"resnet9": 13, "resnet20": 15, "cifarnet": 4}


def _minutes(training: Training, spent: dict[str, float]) -> float:
    """Returns the minutes of the model's last training, or of two idle cores if none has ended."""
    return spent.get(training.model, MINUTES[training.model])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make reproduce-long", description=__doc__)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/thinreduce"))
    parser.add_argument("--folder", type=Path, default=Path("runs/long"), help="unfinished runs")
    parser.add_argument("--results", type=Path, default=Path("docs/results/long.json"))
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="NAME",
        help="trainings, such as 'resnet9-fft-*'; all if none",
    )
    options = parser.parse_args()
    patterns = options.patterns or ["*"]
    # In the order of the patterns, and of the plan within each.
    chosen = list(
        dict.fromkeys(
            one for pattern in patterns for one in TRAININGS if fnmatchcase(one.name, pattern)
        )
    )
    try:
        if not chosen:
            raise Failed(f"no training has one of the names {', '.join(patterns)}")
        Long(options.program, options.folder, options.results).run(chosen)
    except Failed as failure:
        print(f"reproduce-long: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("reproduce-long: stopped; the same command continues from here", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
