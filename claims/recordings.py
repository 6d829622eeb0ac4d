"""Computes what recorded gradients say about the claims: spectra, drift, correlation, errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]
Floats = NDArray[np.float32]

SMALLEST = 9000  # elements of the smallest layer that is looked at
WINDOW = 10  # recorded steps from which a basis is learned
# Orders of a convolution's dimensions (out, in, height, width); the last one is the fastest.
ORDERS = {"paper": (2, 3, 1, 0), "channel": (0, 2, 3, 1), "row": (0, 1, 2, 3)}


class Recording:
    """The folder that `thinreduce train --save-gradients` wrote."""

    def __init__(self, folder: Path, asked: str) -> None:
        self.folder = folder
        self.asked = asked  # arguments of the training
        found = json.loads((folder / "gradients.json").read_text())
        self.ranks: int = found["ranks"]
        self.buckets: list[Json] = found["buckets"]
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


def slice_length(elements: int) -> int:
    """Returns the floats per slice: a power of two, so that all orders have the same."""
    return 1 << math.floor(math.log2(min(256, math.sqrt(8 * elements))))


def slices(layer: Floats, order: str) -> Floats:
    """Cuts a layer into slices, one per row; elements that fill no slice are left out."""
    k = slice_length(layer.size)
    if order == "shuffled":
        values = np.random.default_rng(layer.size).permutation(layer.ravel())
    else:
        values = (layer.transpose(ORDERS[order]) if layer.ndim == 4 else layer).ravel()
    return np.ascontiguousarray(values[: values.size // k * k].reshape(-1, k))


def spectrum(samples: list[Floats]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns eigenvalues, largest first, and eigenvectors of the slices' second moments."""
    moments = sum(one.T.astype(np.float64) @ one for one in samples)
    values, vectors = np.linalg.eigh(moments)
    return np.maximum(values[::-1], 0), vectors[:, ::-1]


def components(values: NDArray[Any], energy: float) -> int:
    """Returns how many of the largest eigenvalues hold this fraction of the energy."""
    return int(np.searchsorted(np.cumsum(values) / values.sum(), energy) + 1)


def lost(samples: Floats, basis: NDArray[Any]) -> float:
    """Returns the fraction of the slices' energy outside the basis."""
    inside = np.square(samples @ basis).sum()
    return float(1 - inside / np.square(samples, dtype=np.float64).sum())


def spectra(recording: Recording) -> list[Json]:
    """Returns per layer: components for 90 and 99 % of the energy, and the loss at an eighth."""
    rows = []
    for name, means in recording.means().items():
        half = len(means) // 2
        k = slice_length(means[0].size)
        row: Json = {"layer": name, "shape": list(means[0].shape), "slice": k, "orders": {}}
        orders = ("paper", "channel", "row") if means[0].ndim == 4 else ("row",)
        for order in (*orders, "shuffled"):
            cut = [slices(one, order) for one in means]
            values, _ = spectrum(cut[half:])
            _, vectors = spectrum(cut[half - WINDOW : half])
            row["orders"][order] = {
                "d90": components(values, 0.9),
                "d99": components(values, 0.99),
                "lost": lost(cut[half], vectors[:, : k // 8]),
            }
        rows.append(row)
    return rows


def drift(recording: Recording) -> list[Json]:
    """Returns per layer the loss of an old basis and of a new one, over the steps."""
    rows = []
    for name, means in recording.means().items():
        half = len(means) // 2
        order = "channel" if means[0].ndim == 4 else "row"
        cut = [slices(one, order) for one in means]
        eighth = slice_length(means[0].size) // 8
        bases = {
            at: spectrum(cut[at - WINDOW : at])[1][:, :eighth] for at in range(half, len(cut), 2)
        }
        rows.append(
            {
                "layer": name,
                "steps": [recording.steps[at] - recording.steps[half - 1] for at in bases],
                "old": [lost(cut[at], bases[half]) for at in bases],
                "new": [lost(cut[at], basis) for at, basis in bases.items()],
            }
        )
    return rows


def correlation(recording: Recording) -> list[Json]:
    """Returns the correlation of two ranks (mean over the pairs), per recorded step."""
    rows = []
    for step in recording.steps:
        flat = [recording.flat(step, rank) for rank in range(recording.ranks)]
        pairs = np.corrcoef(flat)[np.triu_indices(len(flat), 1)]
        rows.append({"step": step, "pair": float(pairs.mean())})
    return rows


BINS = (0, 0.1, 0.25, 0.5, 1, 2, 3.01)  # |w| in step sizes of dqsg


def rounding_errors(recording: Recording, spec: str, steps: int) -> Json:
    """Returns the distribution of a quantizer's errors, in step sizes of dqsg with 7 levels."""
    from thinreduce import codec  # the only use of the Python package

    errors, values = [], []
    for step in recording.steps[-steps:]:
        for layer in recording.layers(step, 0).values():
            blocks = layer.ravel()[: layer.size // 512 * 512].reshape(-1, 512)
            back = codec.decode(codec.encode(blocks, spec, seed=step))
            size = np.abs(blocks).max(axis=1, keepdims=True) / 3
            size[size == 0] = 1
            errors.append(((back.astype(np.float64) - blocks) / size).ravel())
            values.append((blocks / size).ravel())
    e, w = np.concatenate(errors), np.concatenate(values)
    ranked = np.sort(e)
    uniform = np.clip(ranked + 0.5, 0, 1)
    place = np.arange(1, e.size + 1) / e.size
    inside = [(np.abs(w) >= low) & (np.abs(w) < high) for low, high in zip(BINS, BINS[1:])]
    return {
        "elements": int(e.size),
        "largest": float(np.abs(e).max()),
        "mean": float(e.mean()),
        "variance": float(e.var()),
        "ks": float(np.abs(place - uniform).max()),
        "correlation": float(np.corrcoef(e, w)[0, 1]),
        "size_correlation": float(np.corrcoef(np.abs(e), np.abs(w))[0, 1]),
        "bins": [{"elements": int(m.sum()), "variance": float(e[m].var())} for m in inside],
    }
