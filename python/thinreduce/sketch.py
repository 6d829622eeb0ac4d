"""Count Sketch of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._arguments import check_type, real_numbers, saved_bytes, whole_number
from .errors import BadInput

_MAX_ELEMENTS = 2**40  # of one call


def _floats(values: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(real_numbers("values", values), dtype=np.float32).ravel()


class CountSketch:
    """A small table of floats from which the large elements of a long vector can be estimated.

    It is linear: after ``a.merge(b)``, ``a`` is the sketch of the sum of both vectors. Sketches
    with the same number of rows and columns and the same seed use the same hash functions on every
    machine. ``columns`` is rounded up to a multiple of 16.
    """

    def __init__(self, columns: int, *, rows: int = 5, seed: int = 0) -> None:
        self._core = _core.CountSketch(
            rows=whole_number("rows", rows, min=1),
            columns=whole_number("columns", columns, min=1),
            seed=whole_number("seed", seed),
        )

    @property
    def rows(self) -> int:
        return self._core.rows

    @property
    def columns(self) -> int:
        return self._core.columns

    @property
    def seed(self) -> int:
        return self._core.seed

    def cells(self) -> NDArray[np.float32]:
        """Returns a copy of the table, with shape (rows, columns)."""
        cells = np.frombuffer(self._core.cells(), dtype=np.float32)
        return cells.reshape(self.rows, -1).copy()

    def accumulate(self, values: Any, first: int = 0) -> None:
        """Adds a run of the vector that starts at ``first``, which must be a multiple of 16."""
        array = _floats(values)
        first = whole_number("first", first)
        self._core.accumulate(array.ctypes.data, array.size, first)

    def merge(self, other: CountSketch) -> None:
        """Adds the vector of ``other``, which must have the same rows, columns and seed."""
        check_type("other", other, CountSketch, "a thinreduce.CountSketch")
        self._core.merge(other._core)

    def estimate(self, count: int, first: int = 0) -> NDArray[np.float32]:
        """Estimates ``count`` elements, starting at ``first``, which must be a multiple of 16."""
        count = whole_number("count", count, max=_MAX_ELEMENTS)
        first = whole_number("first", first)
        result = np.empty(count, dtype=np.float32)
        self._core.estimate(first, result.ctypes.data, count)
        return result

    def heavy_hitters(
        self, elements: int, min_magnitude: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns the indices and the estimates of the large ones among the first ``elements``
        elements: those whose estimate has a magnitude of ``min_magnitude`` or more."""
        elements = whole_number("elements", elements)
        try:
            least = float(min_magnitude)
        except (TypeError, ValueError):
            raise BadInput(f"min_magnitude must be a number; it is {min_magnitude!r}") from None
        found = self._core.heavy_hitters(elements, least)
        indices = np.array([index for index, _ in found], dtype=np.int64)
        return indices, np.array([value for _, value in found], dtype=np.float32)

    def norm(self) -> float:
        """Returns an estimate of the L2 norm of the whole vector."""
        return self._core.norm()

    def __bytes__(self) -> bytes:
        return self._core.save()

    @classmethod
    def from_bytes(cls, data: bytes) -> CountSketch:
        """Reads the result of ``bytes(sketch)``; raises BadFrame if the bytes are anything else."""
        sketch = cls.__new__(cls)
        sketch._core = _core.CountSketch.load(saved_bytes("data", data))
        return sketch
