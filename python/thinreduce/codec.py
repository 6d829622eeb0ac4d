"""A method without ranks: what goes on the wire for an array, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core


@dataclass(frozen=True)
class Encoded:
    """An array as a method sends it in its first step."""

    spec: str
    shape: tuple[int, ...]
    seed: int
    messages: bytes  # all that the rank sends, statements and frame headers included
    payload_bytes: int  # of which this much is the compressed array

    @property
    def ratio(self) -> float:
        elements = int(np.prod(self.shape, dtype=np.int64))
        return 4 * elements / self.payload_bytes if self.payload_bytes else 0.0


def _layout(shape: tuple[int, ...], spec: str) -> _core.Layout:
    tensors = [("array", list(shape))] if len(shape) > 1 else []
    elements = int(np.prod(shape, dtype=np.int64))
    return _core.Layout(id=0, elements=elements, tensors=tensors, spec=spec)


def encode(array: Any, spec: str, *, seed: int = 0) -> Encoded:
    """What a rank puts on the wire when it reduces ``array`` with one other rank that has zeros.

    Methods that learn before they compress (gradiveq) send their first step whole.
    """
    values = np.ascontiguousarray(array, dtype=np.float32)
    full = _core.spec_text(spec)
    messages, payload = _core.encode(_layout(values.shape, full), values.ctypes.data, seed)
    return Encoded(full, values.shape, seed, messages, payload)


def decode(encoded: Encoded) -> np.ndarray:
    """What the other rank makes of it: the array as the method delivers it.

    Where codes add up inside a ring (dqsg), the other rank's zeros are quantized too, and their
    noise is in the result.
    """
    result = np.zeros(encoded.shape, dtype=np.float32)
    layout = _layout(encoded.shape, encoded.spec)
    _core.decode(layout, encoded.messages, result.ctypes.data, encoded.seed)
    return result
