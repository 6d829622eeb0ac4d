"""Looks at the rounding errors of a quantizer on recorded gradients."""

from __future__ import annotations

import numpy as np

from ..claim import Json
from ..recording import Recording

BLOCK = 512  # elements per scale
BINS = (0, 0.1, 0.25, 0.5, 1, 2, 3.01)  # |w| in step sizes of dqsg


def rounding_errors(recording: Recording, spec: str, steps: int) -> Json:
    """Returns the distribution of a quantizer's errors, in step sizes of dqsg with 7 levels."""
    from thinreduce import codec  # the only use of the Python package

    errors, values = [], []
    for step in recording.steps[-steps:]:
        for layer in recording.layers(step, 0).values():
            blocks = layer.ravel()[: layer.size // BLOCK * BLOCK].reshape(-1, BLOCK)
            back = codec.decode(codec.encode(blocks, spec, seed=step))
            size = np.abs(blocks).max(axis=1, keepdims=True) / 3
            size[size == 0] = 1
            errors.append(((back.astype(np.float64) - blocks) / size).ravel())
            values.append((blocks / size).ravel())
    e, w = np.concatenate(errors), np.concatenate(values)
    uniform = np.clip(np.sort(e) + 0.5, 0, 1)
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
