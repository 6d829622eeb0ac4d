"""Runs the commands of the claims and keeps each result as JSON in the claim's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduce.runs import Json, Program

from .recording import Recording


class Bench:
    """Runs `thinreduce` for one claim after another. A result on disk is not measured again."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = Program(program, folder, 0)
        self.folder = folder
        self.claim = ""

    def kept(self, asked: str, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, or the one on disk for the same request."""
        (self.folder / self.claim).mkdir(exist_ok=True)
        name = hashlib.sha256(asked.encode()).hexdigest()[:16]
        return self.program.kept(f"{self.claim}/{name}", asked, make)

    def ask(self, *arguments: str, methods: tuple[str, ...] = ()) -> list[Json]:
        """Returns the JSON that a command prints, one entry per method."""
        full = [self.program.full_spec(spec) for spec in methods]

        def make() -> list[Json]:
            chosen = [word for spec in methods for word in ("--method", spec)]
            found = json.loads(self.program.call(*arguments, *chosen, "--json"))
            return found if isinstance(found, list) else [found]

        found: list[Json] = self.kept(" ".join([*arguments, *full]), make)
        return found

    def reduce(
        self, ranks: int, link: str, *arguments: str, methods: tuple[str, ...]
    ) -> list[Json]:
        """Measures reduces in the virtual cluster, with the layers of ResNet-50."""
        return self.ask(
            "bench", "reduce", "--ranks", str(ranks), "--simulate", link, "--shapes", "resnet50",
            *arguments, methods=methods,
        )  # fmt: skip

    def codec(self, recording: Recording, *methods: str) -> list[Json]:
        """Measures methods on recorded gradients."""
        gradients = str(recording.folder)
        return [
            self.ask("bench", "codec", "--gradients", gradients, methods=(one,))[0]
            for one in methods
        ]

    def train(self, method: str, *arguments: str) -> Json:
        """Trains and returns the summary; the run folder is not kept."""
        out = str(self.folder / "run")
        return self.ask("train", *arguments, "--out", out, "--overwrite", methods=(method,))[0]

    def analyse(
        self, function: Callable[..., Any], recording: Recording, *arguments: object
    ) -> Any:
        """Returns the result of a function of recorded gradients."""
        asked = f"{function.__name__} {recording.asked} {arguments}"
        return self.kept(asked, lambda: function(recording, *arguments))

    def record(self, name: str, arguments: str) -> Recording:
        """Trains once and records gradients, for all claims."""
        gradients = self.folder / "gradients" / name
        gradients.parent.mkdir(exist_ok=True)

        def make() -> Json:
            self.program.call(
                "train", *arguments.split(), "--evaluate-every", "1000000", "--overwrite",
                "--save-gradients", str(gradients), "--out", str(self.folder / "run"),
            )  # fmt: skip
            return {}

        self.program.kept(f"gradients/{name}", arguments, make)
        return Recording(gradients, arguments)
