"""Gradient all-reduce with far fewer bytes on the wire.

In a DistributedDataParallel script::

    import thinreduce
    model.register_comm_hook(thinreduce.State("gradiveq"), thinreduce.hook)

With numpy arrays only::

    comm = thinreduce.connect(rank, world, "10.0.0.1:29400")
    mean = comm.all_reduce_mean(array, "dqsg")

Both give every rank the mean of all ranks' values, with the same bits on every rank. "gradiveq" and
"dqsg" are specs: the name of a compression method, with options if needed ("dqsg:levels=7").
:func:`methods` lists them. ``State``, ``hook``, ``LocalSteps`` and ``SecondMoment`` need torch,
which is imported when one of them is first used. So do the modules ``fsdp``, ``lightning``,
``huggingface`` and ``checkpoint``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import version
from .codec import Encoded, decode, encode
from .comm import Comm, connect, local
from .errors import (
    BadFrame,
    BadInput,
    BadSpec,
    BadState,
    Error,
    Internal,
    LostPeer,
    Mismatch,
    NonFinite,
    Timeout,
    Unavailable,
)
from .methods import Method, Option, Preset, methods, momentum_inside, simd_target, spec_text
from .sketch import CountSketch

if TYPE_CHECKING:
    from . import checkpoint, fsdp, huggingface, lightning
    from .ddp import Reconfiguration, State, hook
    from .local_steps import LocalSteps
    from .second_moment import SecondMoment
    from .world import redistribute

__version__ = version()

_LAZY = {
    "Reconfiguration": "ddp",
    "State": "ddp",
    "hook": "ddp",
    "LocalSteps": "local_steps",
    "SecondMoment": "second_moment",
    "redistribute": "world",
}
_LAZY_MODULES = ("checkpoint", "fsdp", "huggingface", "lightning")

__all__ = [
    "BadFrame", "BadInput", "BadSpec", "BadState", "Comm", "CountSketch", "Encoded",
    "Error", "Internal", "LocalSteps", "LostPeer", "Method", "Mismatch", "NonFinite", "Option",
    "Preset", "Reconfiguration", "SecondMoment", "State", "Timeout", "Unavailable", "checkpoint",
    "connect", "decode", "encode", "fsdp", "hook", "huggingface", "lightning", "local", "methods",
    "momentum_inside", "redistribute", "simd_target", "spec_text",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY_MODULES:
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module 'thinreduce' has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
