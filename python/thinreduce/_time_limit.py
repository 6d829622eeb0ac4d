"""A time limit that several waits share."""

from __future__ import annotations

import time


class TimeLimit:
    """Seconds from now on, for a task of several stages. Error texts give ``total``, as the user
    did."""

    def __init__(self, total: float) -> None:
        self.total = total
        self._end = time.monotonic() + total

    def left(self) -> float:
        """Returns the rest, to a tenth of a second if it is longer than that."""
        rest = max(0.0, self._end - time.monotonic())
        return round(rest, 1) if rest > 0.1 else rest
