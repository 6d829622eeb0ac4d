"""Writes figures as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence


def code(spec: str) -> str:
    return f"`{spec}`"


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def change(ratio: float, digits: int = 0) -> str:
    """Writes 0.9 as "-10 %"."""
    return f"{100 * (ratio - 1):+.{digits}f} %"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def times(factor: float) -> str:
    return f"{factor:.1f}x"


def bandwidth(link: str) -> str:
    """Returns "1gbit" of "1gbit,0.1ms"."""
    return link.split(",")[0]


def span(values: Sequence[float], digits: int) -> str:
    """Writes the smallest and the largest value."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
