"""Exceptions of the package, one class per error code. Each has the text of the C++ engine."""

from __future__ import annotations


class Error(RuntimeError):
    """An error that the caller can handle; the base class of all others here."""

    #: The engine's name of this kind of error, as docs/errors.md lists it.
    code = "error"


class BadSpec(Error, ValueError):
    """The spec names a method, option or value that does not exist, or options that contradict."""

    code = "bad_spec"


class BadInput(Error, ValueError):
    """An argument is wrong: NaN or Inf in a gradient, shapes that do not match, a malformed value.

    The connection stays usable after NaN and Inf.
    """

    code = "bad_input"


class NonFinite(BadInput):
    """A gradient is NaN or Inf, or a second moment is not a square, on some rank.

    All ranks get this error for the same bucket. Nothing was changed, and the connection stays
    usable.
    """


class Mismatch(Error):
    """The ranks disagree: about spec, options, order of buckets, shapes, step or bits of a mean."""

    code = "mismatch"


class BadFrame(Error):
    """A peer's bytes are truncated, altered or of another version; or sums overflow in a method."""

    code = "bad_frame"


class LostPeer(Error):
    """A rank died, disconnected or failed. The text names the rank."""

    code = "lost_peer"


class Timeout(Error):
    """A peer was silent beyond ``timeout``, or did not take part within ``patience``."""

    code = "timeout"


class BadState(Error):
    """A saved state is damaged, or belongs to another rank, world size, spec or version."""

    code = "bad_state"


class Unavailable(Error):
    """A backend was not built, or a file, port, network interface or SIMD target is not usable."""

    code = "unavailable"


class Internal(Error):
    """A bug in thinreduce; please report it with its text."""

    code = "internal"


_BY_CODE: dict[str, type[Error]] = {
    cls.code: cls
    for cls in (
        BadSpec,
        BadInput,
        Mismatch,
        BadFrame,
        LostPeer,
        Timeout,
        BadState,
        Unavailable,
        Internal,
    )
}


def from_code(code: str, message: str, nonfinite: bool = False) -> Error:
    """Returns the exception for an error of the engine."""
    return NonFinite(message) if nonfinite else _BY_CODE.get(code, Error)(message)


def describe(error: BaseException) -> str:
    """Returns an exception in words, for the other ranks."""
    text = str(error)
    if isinstance(error, Error) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
