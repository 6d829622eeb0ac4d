"""Encodes and decodes single arrays, without a connection, to study a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._arguments import real_numbers, spec_text, whole_number
from .errors import BadInput, BadSpec


@dataclass(frozen=True)
class Encoded:
    """The bytes that a method sends for an array in its first step. Returned by :func:`encode`."""

    #: The method with all its options.
    spec: str
    shape: tuple[int, ...]
    seed: int
    #: All bytes that the rank sends, including frame headers and the agreement on what to reduce.
    messages: bytes
    #: The number of bytes in ``messages`` that hold the compressed array.
    payload_bytes: int

    @property
    def ratio(self) -> float:
        """The size of the array as float32 divided by ``payload_bytes``."""
        elements = int(np.prod(self.shape, dtype=np.int64))
        return 4 * elements / self.payload_bytes if self.payload_bytes else 0.0


def _layout(shape: tuple[int, ...], spec: str) -> _core.Layout:
    tensors = [("array", list(shape))] if len(shape) > 1 else []
    elements = int(np.prod(shape, dtype=np.int64))
    return _core.Layout(id=0, elements=elements, tensors=tensors, spec=spec)


def encode(array: Any, spec: str, *, seed: int = 0) -> Encoded:
    """Returns the bytes that a rank sends to reduce ``array`` with one other rank that has zeros.

    ``spec`` is a method with options, such as "dqsg:levels=7". These are the bytes of a first step:
    a method that learns before it compresses (gradiveq) sends that step uncompressed. ``seed`` is
    the seed of the random numbers of methods that round at random.
    """
    values = np.ascontiguousarray(real_numbers("array", array), dtype=np.float32)
    seed = whole_number("seed", seed)
    full = spec_text(spec)
    if full.startswith("auto"):
        raise BadSpec(f"'{spec}' chooses a method for a link, and encode() has none; name a method")
    messages, payload = _core.encode(_layout(values.shape, full), values.ctypes.data, seed)
    return Encoded(full, values.shape, seed, messages, payload)


def decode(encoded: Encoded) -> NDArray[np.float32]:
    """Returns the array as the other rank receives it, with the method's compression error.

    Methods that add codes inside a ring (dqsg) quantize the other rank's zeros too, so the result
    holds the noise of both ranks.
    """
    if not isinstance(encoded, Encoded):
        raise BadInput(f"decode() takes what encode() returned; it got {type(encoded).__name__}")
    result = np.zeros(encoded.shape, dtype=np.float32)
    layout = _layout(encoded.shape, encoded.spec)
    _core.decode(layout, encoded.messages, result.ctypes.data, encoded.seed)
    return result
