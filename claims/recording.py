"""Reads the gradients that `thinreduce train --save-gradients` recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SMALLEST = 9000  # elements of the smallest layer that is looked at


class Recording:
    """A folder of recorded gradients."""

    def __init__(self, folder: Path, asked: str) -> None:
        self.folder = folder
        self.asked = asked  # arguments of the training
        found = json.loads((folder / "gradients.json").read_text())
        self.ranks: int = found["ranks"]
        self.buckets: list[dict[str, Any]] = found["buckets"]
        self.steps: list[int] = sorted({one["step"] for one in found["records"]})
        self.files = {(r["step"], r["rank"], r["bucket"]): r["file"] for r in found["records"]}

    def layers(self, step: int, rank: int) -> dict[str, Floats]:
        """Returns one rank's gradients of the layers of at least SMALLEST elements."""
        found = {}
        for bucket in self.buckets:
            file = self.folder / self.files[step, rank, bucket["id"]]
            values = np.fromfile(file, dtype="<f4")
            offset = 0
            for tensor in bucket["tensors"]:
                elements = math.prod(tensor["shape"])
                if elements >= SMALLEST and len(tensor["shape"]) > 1:
                    part = values[offset : offset + elements]
                    found[tensor["name"]] = part.reshape(tensor["shape"])
                offset += elements
        return found

    def flat(self, step: int, rank: int) -> Floats:
        """Returns the same layers as one vector."""
        return np.concatenate([one.ravel() for one in self.layers(step, rank).values()])

    def means(self) -> dict[str, list[Floats]]:
        """Returns the mean over the ranks, per layer and recorded step."""
        found: dict[str, list[Floats]] = {}
        for step in self.steps:
            by_rank = [self.layers(step, rank) for rank in range(self.ranks)]
            for name in by_rank[0]:
                mean = np.mean([layers[name] for layers in by_rank], axis=0)
                found.setdefault(name, []).append(mean)
        return found
