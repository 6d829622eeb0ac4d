"""Checks arguments, so that a wrong one is refused at once and by name."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from .errors import BadInput, BadSpec, BadState

_MAX = 2**64 - 1  # of the engine's numbers
MAX_RANKS = 2**31 - 1


def shown(value: Any) -> str:
    """Returns a wrong argument for an error: its text, or its type if the text is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"of type {type(value).__name__}"


def check_type(name: str, value: Any, kind: type | tuple[type, ...], words: str) -> None:
    """Raises BadInput unless ``value`` is of this type, which ``words`` name."""
    if not isinstance(value, kind):
        raise BadInput(f"{name} must be {words}; it is {shown(value)}")


def real_numbers(name: str, value: Any) -> NDArray[Any]:
    """Returns ``value`` as an array; raises BadInput if it is complex."""
    array = np.asarray(value)
    if np.iscomplexobj(array):
        raise BadInput(
            f"{name} must have real numbers; it is {array.dtype}: pass its real and its imaginary "
            "part as two arrays"
        )
    return array


def saved_bytes(name: str, value: Any) -> bytes:
    """Returns ``value`` as bytes; raises BadInput unless it is bytes or their like."""
    check_type(name, value, (bytes, bytearray, memoryview), "bytes")
    return bytes(value)


def check_saved_state(state: Any, maker: str, format: int | None, keys: tuple[str, ...]) -> None:
    """Raises BadState unless ``state`` is a dict with these keys that ``maker.state_dict()`` has
    returned, in this format; None accepts any format."""
    if not isinstance(state, Mapping):
        raise BadState(
            f"this is not a state that {maker}.state_dict() returned (it is {shown(state)})"
        )
    if format is not None and state.get("format", format) != format:
        raise BadState(
            f"the saved state has format {state['format']}, and this version of thinreduce reads "
            f"format {format}; load it with the version that saved it"
        )
    for key in keys:
        if key not in state:
            raise BadState(
                f"this is not a state that {maker}.state_dict() returned (it has no '{key}')"
            )


def whole_number(name: str, value: Any, *, min: int = 0, max: int = _MAX) -> int:
    """Returns ``value`` as int; raises BadInput unless it is a whole number in the range."""
    try:
        number = operator.index(value)
    except TypeError:
        number = min - 1
    if not min <= number <= max:
        raise BadInput(f"{name} must be a whole number from {min} to {max}; it is {value!r}")
    return number


def check_text(name: str, value: Any) -> str:
    """Returns ``value``; raises BadInput unless it is a string."""
    if not isinstance(value, str):
        raise BadInput(f"{name} must be a string; it is {value!r}")
    return value


def check_secret(value: Any) -> None:
    """Raises BadInput, which does not show the value, unless it has the type of a secret."""
    if value is not None and not isinstance(value, (str, bytes)):
        raise BadInput(f"secret must be a string or None; it is of type {type(value).__name__}")


def spec_text(spec: Any) -> str:
    """Returns a spec with all its options; raises BadSpec unless it exists."""
    if not isinstance(spec, str):
        raise BadSpec(f"a spec must be a string, such as 'dqsg:levels=7'; it is {spec!r}")
    return _core.spec_text(spec)


def thread_count(value: Any) -> int:
    """Returns a number of threads; raises BadInput unless the engine can have as many."""
    return whole_number("threads", value, min=1, max=1024)


def seconds(name: str, value: Any, *, or_zero: bool = False) -> float:
    """Returns ``value`` as float; raises BadInput unless it is above 0, or 0 with ``or_zero``."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not (number > 0 or (or_zero and number == 0)):  # refuses NaN, too
        least = "0 or more" if or_zero else "above 0"
        raise BadInput(f"{name} must be a number of seconds {least}; it is {value!r}")
    return number


class SessionArguments:
    """The arguments of a session that State, LocalSteps, connect() and local() share, checked."""

    def __init__(
        self,
        *,
        timeout: float,
        patience: float,
        min_size: int,
        seed: int,
        check_replicas_every: int,
        threads: int,
        guard: str = "off",
        guard_factor: float = 10.0,
    ) -> None:
        if guard not in ("off", "report", "clip", "refuse"):
            raise BadInput(f"guard must be 'off', 'report', 'clip' or 'refuse'; it is {guard!r}")
        try:
            factor = float(guard_factor)
        except (TypeError, ValueError):
            factor = 0.0
        if not 1 < factor < float("inf"):
            raise BadInput(f"guard_factor must be finite and above 1; it is {guard_factor!r}")
        self._options: dict[str, Any] = {
            "timeout": seconds("timeout", timeout),
            "patience": seconds("patience", patience, or_zero=True),
            "min_elements": whole_number("min_size", min_size),
            "seed": whole_number("seed", seed),
            "check_replicas_every": whole_number("check_replicas_every", check_replicas_every),
            "threads": thread_count(threads),
            "guard": guard,
            "guard_factor": factor,
        }

    def options(self, **more: Any) -> _core.SessionOptions:
        """Returns the options of the engine's session; ``more`` are those that are not shared."""
        return _core.SessionOptions(**self._options, **more)


def check_out(out: Any, shape: tuple[int, ...]) -> None:
    """Raises BadInput unless the engine can write a result of this shape to the array."""
    if not isinstance(out, np.ndarray):
        raise BadInput(f"out must be a numpy array; it is {type(out).__name__}")
    flags = out.flags
    if out.dtype == np.float32 and flags.carray and out.shape == shape:
        return
    wrong = [
        word
        for word, found in (
            ("read-only", not flags.writeable),
            ("non-contiguous", not flags.c_contiguous),
            ("unaligned", not flags.aligned),
        )
        if found
    ]
    raise BadInput(
        f"out must be writeable, contiguous float32 of shape {shape}; it is "
        f"{' '.join([*wrong, str(out.dtype)])} of shape {out.shape}"
    )
