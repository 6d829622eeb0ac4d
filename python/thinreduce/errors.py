"""Exceptions: one class for each code of docs/errors.md, with the engine's own text."""

from __future__ import annotations


class Error(RuntimeError):
    """What a caller can handle. ``code`` is the code of docs/errors.md."""

    code = "error"


class BadSpec(Error, ValueError):
    """A method, option or value that does not exist."""

    code = "bad_spec"


class BadInput(Error, ValueError):
    """A gradient that can't be reduced, shapes that do not add up, a wrong argument."""

    code = "bad_input"


class Mismatch(Error):
    """The ranks disagree about what they do."""

    code = "mismatch"


class BadFrame(Error):
    """Bytes from a peer that are cut, altered or of another version."""

    code = "bad_frame"


class LostPeer(Error):
    """A rank died, left or gave up; the text names it."""

    code = "lost_peer"


class Timeout(Error):
    """A wait passed its deadline."""

    code = "timeout"


class BadState(Error):
    """A saved state that is damaged, or of another world, rank or spec."""

    code = "bad_state"


class Unavailable(Error):
    """A backend, file or address that is not there."""

    code = "unavailable"


_BY_CODE: dict[str, type[Error]] = {
    cls.code: cls
    for cls in (BadSpec, BadInput, Mismatch, BadFrame, LostPeer, Timeout, BadState, Unavailable)
}


def from_code(code: str, message: str) -> Error:
    """The exception for an error of the engine."""
    return _BY_CODE.get(code, Error)(message)
