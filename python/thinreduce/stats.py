"""Adds up the bytes and times of exchanges, per step and over all steps."""

from __future__ import annotations

import threading
from typing import Any

_COUNTS = ("elements", "payload_bytes", "bytes_sent", "bytes_received")


class _Sum:
    """The sum of the engine's reports on single buckets."""

    def __init__(self) -> None:
        self.steps = 0
        self.buckets = 0
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.seconds: dict[str, float] = {}
        self.statistics: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self.outliers: dict[int, float] = {}

    def add(self, report: dict[str, Any]) -> None:
        self.buckets += 1
        for name in _COUNTS:
            self.counts[name] += report[name]
        seconds = {**report["stages"], "queued": report["queued"], "total": report["total"]}
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
        # A method's statistics are averages over elements.
        for name, value in report["statistics"].items():
            weight = self._weights.get(name, 0.0)
            added = max(report["elements"], 1)
            mean = self.statistics.get(name, 0.0)
            self.statistics[name] = (mean * weight + value * added) / (weight + added)
            self._weights[name] = weight + added

        for rank, times in report["outliers"].items():
            self.outliers[rank] = max(times, self.outliers.get(rank, 0.0))

    def as_dict(self) -> dict[str, Any]:
        payload = self.counts["payload_bytes"]
        return {
            "buckets": self.buckets,
            **self.counts,
            "ratio": 4 * self.counts["elements"] / payload if payload else 0.0,
            "seconds": dict(self.seconds),
            "statistics": dict(self.statistics),
            "outliers": dict(self.outliers),
        }


class Stats:
    """Sums over the buckets of the last step, and over those of all steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = 0
        self._last = _Sum()
        self._all = _Sum()

    def add(self, step: int, report: dict[str, Any]) -> None:
        with self._lock:
            if step != self._step:
                self._step = step
                self._last = _Sum()
                self._all.steps += 1
            self._last.add(report)
            self._all.add(report)

    def as_dict(self) -> dict[str, Any]:
        with self._lock:
            total = self._all.as_dict()
            total["steps"] = self._all.steps
            return {"step": self._step, **self._last.as_dict(), "total": total}

    def scalars(self) -> dict[str, dict[str, float]]:
        last = self.as_dict()
        result = {
            "thinreduce/seconds": {name: float(value) for name, value in last["seconds"].items()},
            "thinreduce/bytes": {
                name: float(last[key])
                for name, key in (
                    ("payload", "payload_bytes"),
                    ("sent", "bytes_sent"),
                    ("received", "bytes_received"),
                )
            },
            "thinreduce/ratio": {"ratio": float(last["ratio"])},
        }
        if last["statistics"]:
            result["thinreduce/method"] = dict(last["statistics"])
        return result
