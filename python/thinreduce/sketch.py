"""Count Sketch of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core


def _floats(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32).ravel()


class CountSketch:
    """A small table of floats from which the large elements of a long vector can be read.

    It is linear: ``a.merge(b)`` holds the sketch of the sum. Sketches with the same shape and seed
    hash alike on every machine. ``columns`` is rounded up to a multiple of 16.
    """

    def __init__(self, columns: int, *, rows: int = 5, seed: int = 0) -> None:
        self._core = _core.CountSketch(rows=rows, columns=columns, seed=seed)

    @property
    def rows(self) -> int:
        return self._core.rows

    @property
    def columns(self) -> int:
        return self._core.columns

    @property
    def seed(self) -> int:
        return self._core.seed

    def cells(self) -> np.ndarray:
        """A copy of the table, row after row."""
        cells = np.frombuffer(self._core.cells(), dtype=np.float32)
        return cells.reshape(self.rows, -1).copy()

    def accumulate(self, values: Any, first: int = 0) -> None:
        """Adds values that start at element ``first``, a multiple of 16."""
        array = _floats(values)
        self._core.accumulate(array.ctypes.data, array.size, first)

    def merge(self, other: CountSketch) -> None:
        """Adds all that ``other`` holds; it must have the same shape and seed."""
        self._core.merge(other._core)

    def estimate(self, count: int, first: int = 0) -> np.ndarray:
        """Estimates of ``count`` elements from ``first`` on, a multiple of 16."""
        result = np.empty(count, dtype=np.float32)
        self._core.estimate(first, result.ctypes.data, count)
        return result

    def heavy_hitters(self, elements: int, least: float) -> tuple[np.ndarray, np.ndarray]:
        """Indices and estimates of those of the first ``elements`` with at least this magnitude."""
        found = self._core.heavy_hitters(elements, least)
        indices = np.array([index for index, _ in found], dtype=np.int64)
        return indices, np.array([value for _, value in found], dtype=np.float32)

    def norm(self) -> float:
        """An estimate of the L2 norm of the whole vector."""
        return self._core.norm()

    def __bytes__(self) -> bytes:
        return self._core.save()

    @classmethod
    def from_bytes(cls, data: bytes) -> CountSketch:
        """What ``bytes(sketch)`` gave; raises BadFrame for anything else."""
        sketch = cls.__new__(cls)
        sketch._core = _core.CountSketch.load(data)
        return sketch
