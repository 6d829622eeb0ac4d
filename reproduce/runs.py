"""Runs the program and keeps each result on disk, so that a stopped reproduction can continue.

The request is kept beside each result, with every option written out. If a default or the plan has
changed since, the part runs again. A change of the program that changes no option needs `--again`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import settings as plan
from .settings import Setting

Json = dict[str, Any]


class Failed(Exception):
    """A command of the reproduction failed; the text holds the command and its output."""


def read_lines(path: Path) -> list[Json]:
    """Reads a JSONL file, without its last line if that is truncated."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


class Progress:
    """Prints one line per part: its number, the minutes so far and its name."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.done = 0
        self.start = time.monotonic()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.start) / 60

    def begin(self, what: str) -> None:
        self.done += 1
        print(f"[{self.done}/{self.parts}, {self.minutes:.0f} min] {what}", flush=True)


class Program:
    """Runs `thinreduce` commands and keeps their results in one folder."""

    def __init__(self, program: Path, folder: Path, epochs: float) -> None:
        self.program = program
        self.folder = folder
        self.epochs = epochs
        folder.mkdir(parents=True, exist_ok=True)
        self.methods = {one["name"]: one for one in json.loads(self.call("methods", "--json"))}

    def full_spec(self, spec: str) -> str:
        """Returns the spec with every option written out."""
        parts = []
        for part in spec.split("+"):
            name, _, given = part.partition(":")
            options = {
                option["name"]: option["default"] for option in self.methods[name]["options"]
            }
            options.update(pair.split("=") for pair in given.split(",") if pair)
            spelled = ",".join(f"{key}={value}" for key, value in sorted(options.items()))
            parts.append(f"{name}:{spelled}" if spelled else name)
        return "+".join(parts)

    def call(self, *arguments: str, stopped_ok: bool = False) -> str:
        """Returns the output of a command; with `stopped_ok`, exit code 1 is not an error."""
        command = [str(self.program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0 and not (stopped_ok and done.returncode == 1):
            raise Failed(
                f"'{' '.join(command)}' failed with exit code {done.returncode}: "
                + done.stderr.strip()[-500:]
            )
        return done.stdout

    def kept(self, name: str, asked: str, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, or the one on disk if it is of the same request."""
        path = self.folder / f"{name}.json"
        if path.exists():
            before = json.loads(path.read_text())
            if before["asked"] == asked:
                return before["found"]
        found = make()
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"asked": asked, "found": found}, indent=1))
        part.rename(path)
        return found

    # Each training stops in the middle, where the run folder is copied, and then goes on to the
    # end. The time of a step over each link is measured later from the copies, one after another.

    def run_folder(self, setting: Setting) -> Path:
        return self.folder / "train" / setting.name

    def steps_done(self, run: Path) -> int:
        """Returns the step of the run's newest checkpoint."""
        checkpoint = run / "checkpoint.json"
        return json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0

    def middle_folder(self, setting: Setting) -> Path:
        return self.folder / "middle" / setting.name

    def asked(self, setting: Setting) -> str:
        """Returns all arguments that the result of a training depends on."""
        arguments = " ".join(self.training_arguments(setting))
        return arguments.replace(setting.spec, self.full_spec(setting.spec), 1)

    def question(self, setting: Setting) -> Path:
        """Returns the file that holds the arguments of the training."""
        return self.folder / "train" / f"{setting.name}.asked"

    def was_asked(self, setting: Setting) -> bool:
        """Returns whether the training on disk, finished or not, has the current arguments."""
        question = self.question(setting)
        return question.exists() and question.read_text() == self.asked(setting)

    def training_arguments(self, setting: Setting) -> list[str]:
        return [
            "--method", setting.spec, "--data", plan.DATA, "--model", plan.MODEL,
            "--ranks", str(plan.RANKS), "--epochs", str(self.epochs), "--seed", str(plan.SEED),
            "--optimizer", setting.optimizer, "--evaluate-every", str(plan.EVALUATE_EVERY),
        ]  # fmt: skip

    def train(self, setting: Setting, middle: int) -> None:
        """Trains to the end, with a copy of the run folder at step `middle`."""
        if self.finished(setting):
            return
        if not self.was_asked(setting):
            for folder in (self.run_folder(setting), self.middle_folder(setting)):
                shutil.rmtree(folder, ignore_errors=True)
            if setting == plan.SETTINGS[0]:
                (self.folder / "gradients.done").unlink(missing_ok=True)
            self.question(setting).parent.mkdir(exist_ok=True)
            self.question(setting).write_text(self.asked(setting))
        copy = self.middle_folder(setting)
        if not copy.exists():
            self.train_to(setting, middle)
            part = self.folder / "copying"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(self.run_folder(setting), part)
            copy.parent.mkdir(exist_ok=True)
            part.rename(copy)
        self.train_to(setting, 0)

    def train_to(self, setting: Setting, stop_after: int) -> None:
        """Trains to step `stop_after`, or to the end if it is 0."""
        run = self.run_folder(setting)
        if stop_after and self.steps_done(run) >= stop_after:
            return
        stop = ("--stop-after", str(stop_after)) if stop_after else ()
        if self.steps_done(run):
            self.call("train", "--resume", str(run), *stop, stopped_ok=bool(stop))
        else:
            self.call(
                "train", *self.training_arguments(setting), "--out", str(run), "--overwrite", *stop,
                stopped_ok=bool(stop),
            )  # fmt: skip
        if stop and self.steps_done(run) < stop_after:
            raise Failed(
                f"training {setting.name} in {run} stopped at step {self.steps_done(run)} instead "
                f"of step {stop_after}"
            )

    def finished(self, setting: Setting) -> bool:
        """Returns whether the setting is trained to the end with the current arguments."""
        summary = self.run_folder(setting) / "summary.json"
        if not summary.exists() or not self.was_asked(setting):
            return False
        return json.loads(summary.read_text())["status"] == "finished"

    def time_steps(self, setting: Setting, link: str, steps: int) -> list[Json]:
        """Runs steps over `link` from the middle of the training; returns their records."""

        def measure() -> list[Json]:
            middle = self.steps_done(self.middle_folder(setting))
            copy = self.folder / "timing"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.middle_folder(setting), copy)
            # The first step after a start is not timed: it touches memory for the first time.
            self.call(
                "train", "--resume", str(copy), "--link", link,
                "--stop-after", str(middle + steps + 1), stopped_ok=True,
            )  # fmt: skip
            lines = [line for line in read_lines(copy / "steps.jsonl") if line["step"] > middle + 1]
            shutil.rmtree(copy)
            if len(lines) != steps:
                raise Failed(
                    f"{setting.name} over {link} has {len(lines)} timed steps instead of {steps}"
                )
            return lines

        asked = f"{steps} steps, {self.asked(setting)}"
        return self.kept(f"steps-{setting.name}-{link}", asked, measure)

    def record_gradients(self, setting: Setting, steps: int) -> Path:
        """Records every rank's gradients for `steps` steps from the middle of the training."""
        gradients = self.folder / "gradients"
        done = self.folder / "gradients.done"  # holds the number of steps
        if not done.exists() or done.read_text() != str(steps):
            done.unlink(missing_ok=True)
            for judged in self.folder.glob("codec-*.json"):
                judged.unlink()
            copy = self.folder / "recording"
            for folder in (copy, gradients):
                shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.middle_folder(setting), copy)
            last = self.steps_done(copy) + steps
            self.call(
                "train", "--resume", str(copy), "--stop-after", str(last),
                "--save-gradients", str(gradients), "--save-every", "1", stopped_ok=True,
            )  # fmt: skip
            if self.steps_done(copy) != last:
                raise Failed(
                    f"recording the gradients of {setting.name} stopped at step "
                    f"{self.steps_done(copy)} instead of step {last}"
                )
            shutil.rmtree(copy)
            done.write_text(str(steps))
        return gradients

    def bench(self, name: str, spec: str, *arguments: str) -> Json:
        """Returns the result of `thinreduce bench ARGUMENTS --method SPEC --json`."""

        def measure() -> Json:
            found = json.loads(self.call("bench", *arguments, "--method", spec, "--json"))
            return found[0] if isinstance(found, list) else found

        asked = f"bench {' '.join(arguments)} --method {self.full_spec(spec)}"
        if "--gradients" in arguments:
            asked += f", recorded from {self.asked(plan.SETTINGS[0])}"
        return self.kept(name, asked, measure)


def fetch(program: Program) -> None:
    """Downloads the data set."""
    program.call("train", "--data", plan.DATA, "--model", plan.MODEL, "--fetch-only")
