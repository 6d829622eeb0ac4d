"""Runs the program, step by step: what is done stays done, so that a stopped reproduction goes on where it was.

What was asked for is kept beside what was found, with every option spelled out: where a default or the plan has
changed since, it is done again. A change of the program that changes no option needs `--again`."""

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
    """A command of the reproduction failed; the message names it."""


def read_lines(path: Path) -> list[Json]:
    """A JSONL file; a last line that was cut is left out."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


class Progress:
    """One line a part: how far, what, and how long it took."""

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
    """The command line, and the folder that everything of a reproduction goes to."""

    def __init__(self, program: Path, folder: Path, epochs: float) -> None:
        self.program = program
        self.folder = folder
        self.epochs = epochs
        folder.mkdir(parents=True, exist_ok=True)
        self.methods = {one["name"]: one for one in json.loads(self.call("methods", "--json"))}

    def full_spec(self, spec: str) -> str:
        """The spec with every option spelled out."""
        parts = []
        for part in spec.split("+"):
            name, _, given = part.partition(":")
            options = {option["name"]: option["default"] for option in self.methods[name]["options"]}
            options.update(pair.split("=") for pair in given.split(",") if pair)
            spelled = ",".join(f"{key}={value}" for key, value in sorted(options.items()))
            parts.append(f"{name}:{spelled}" if spelled else name)
        return "+".join(parts)

    def call(self, *arguments: str, stopped_ok: bool = False) -> str:
        command = [str(self.program), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0 and not (stopped_ok and done.returncode == 1):
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def kept(self, name: str, asked: str, make: Callable[[], Any]) -> Any:
        """What `make` gives as JSON, from the folder if it is there already for the same question."""
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

    # Training: to the middle, where a copy is kept, then to the end. From the copies, later and one after the other,
    # comes the time of a step over each link.

    def run_folder(self, setting: Setting) -> Path:
        return self.folder / "train" / setting.name

    def steps_done(self, run: Path) -> int:
        """Steps of the run's newest checkpoint."""
        checkpoint = run / "checkpoint.json"
        return json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0

    def middle_folder(self, setting: Setting) -> Path:
        return self.folder / "middle" / setting.name

    def asked(self, setting: Setting) -> str:
        """What a training depends on."""
        arguments = " ".join(self.training_arguments(setting))
        return arguments.replace(setting.spec, self.full_spec(setting.spec), 1)

    def question(self, setting: Setting) -> Path:
        """Where it is kept."""
        return self.folder / "train" / f"{setting.name}.asked"

    def was_asked(self, setting: Setting) -> bool:
        """Whether what was trained, or begun, is what is asked for now."""
        question = self.question(setting)
        return question.exists() and question.read_text() == self.asked(setting)

    def training_arguments(self, setting: Setting) -> list[str]:
        return [
            "--method", setting.spec, "--data", plan.DATA, "--model", plan.MODEL, "--ranks", str(plan.RANKS),
            "--epochs", str(self.epochs), "--seed", str(plan.SEED), "--optimizer", setting.optimizer,
            "--evaluate-every", str(plan.EVALUATE_EVERY),
        ]  # fmt: skip

    def train(self, setting: Setting, middle: int) -> None:
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
            raise Failed(f"{run}: stopped at step {self.steps_done(run)} instead of {stop_after}")

    def finished(self, setting: Setting) -> bool:
        """Trained to the end, with what is asked for now."""
        summary = self.run_folder(setting) / "summary.json"
        if not summary.exists() or not self.was_asked(setting):
            return False
        return json.loads(summary.read_text())["status"] == "finished"

    def time_steps(self, setting: Setting, link: str, steps: int) -> list[Json]:
        """Steps from the middle of the training over `link`, from a copy of the run."""

        def measure() -> list[Json]:
            middle = self.steps_done(self.middle_folder(setting))
            copy = self.folder / "timing"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.middle_folder(setting), copy)
            # The first step after a start touches memory for the first time.
            self.call(
                "train", "--resume", str(copy), "--link", link, "--stop-after", str(middle + steps + 1),
                stopped_ok=True,
            )  # fmt: skip
            lines = [line for line in read_lines(copy / "steps.jsonl") if line["step"] > middle + 1]
            shutil.rmtree(copy)
            if len(lines) != steps:
                raise Failed(f"{setting.name} over {link}: {len(lines)} steps timed instead of {steps}")
            return lines

        return self.kept(f"steps-{setting.name}-{link}", f"{steps} steps, {self.asked(setting)}", measure)

    def record_gradients(self, setting: Setting, steps: int) -> Path:
        """Every rank's gradients of so many steps from the middle of the training."""
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
                "train", "--resume", str(copy), "--stop-after", str(last), "--save-gradients", str(gradients),
                "--save-every", "1", stopped_ok=True,
            )  # fmt: skip
            if self.steps_done(copy) != last:
                raise Failed(f"recording stopped at step {self.steps_done(copy)} instead of {last}")
            shutil.rmtree(copy)
            done.write_text(str(steps))
        return gradients

    # Benches.

    def bench(self, name: str, spec: str, *arguments: str) -> Json:
        """`thinreduce bench ARGUMENTS --method SPEC --json`."""

        def measure() -> Json:
            found = json.loads(self.call("bench", *arguments, "--method", spec, "--json"))
            return found[0] if isinstance(found, list) else found

        asked = f"bench {' '.join(arguments)} --method {self.full_spec(spec)}"
        if "--gradients" in arguments:
            asked += f", recorded from {self.asked(plan.SETTINGS[0])}"
        return self.kept(name, asked, measure)


def fetch(program: Program) -> None:
    program.call("train", "--data", plan.DATA, "--model", plan.MODEL, "--fetch-only")
