"""Keeps all results in one file, docs/peers/results.json, so that a stopped run can continue."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .contenders import BUSY, Part

Json = dict[str, Any]


class Store:
    """Results by the name of their part. Every result is on disk as soon as it is added.

    Two runs may add results to one file: it is read again, under a lock, before it is written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.content: Json = self.read()

    def read(self) -> Json:
        empty: Json = {"machine": {}, "packages": {}, "links": {}, "parts": {}}
        return {**empty, **json.loads(self.file.read_text())} if self.file.exists() else empty

    def change(self, section: str, new: Json, removed: Iterable[str] = ()) -> None:
        """Puts entries in a section of the file, and removes others."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"/tmp/thinreduce-peers-{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.content = self.read()
            for name in removed:
                self.content[section].pop(name, None)
            self.content[section].update(new)
            partial = self.file.with_suffix(".part")
            partial.write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n")
            partial.rename(self.file)

    def found(self, part: Part) -> Json | None:
        """Returns the result of the part, an error included, or None if there is none."""
        kept = self.content["parts"].get(part.name)
        return kept["found"] if kept and kept["asked"] == part.asked else None

    def is_open(self, part: Part) -> bool:
        """Returns whether the part must be measured, or its times again: other programs ran."""
        found = self.found(part)
        return found is None or found.get("other_cores", 0) > BUSY

    def add(self, part: Part, found: Json) -> None:
        self.change("parts", {part.name: {"asked": part.asked, "found": found}})

    def remove(self, parts: Iterable[Part]) -> None:
        self.change("parts", {}, [part.name for part in parts])
