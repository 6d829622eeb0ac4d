"""Cuts recorded layers into slices, as GradiVeQ does, and looks at their spectra."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..claim import Json
from ..recording import Floats, Recording

WINDOW = 10  # recorded steps from which a basis is learned
# Orders of a convolution's dimensions (out, in, height, width); the last one is the fastest.
ORDERS = {"paper": (2, 3, 1, 0), "channel": (0, 2, 3, 1), "row": (0, 1, 2, 3)}


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
