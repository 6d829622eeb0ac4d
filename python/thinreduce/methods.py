"""What methods there are, and what a spec means."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    default: str
    min: float
    max: float
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Method:
    """One published algorithm, as ``thinreduce methods`` shows it."""

    name: str
    algebra: str
    summary: str
    paper: str
    has_momentum: bool
    second_moment: bool  # takes one beside the gradient
    composes_with: tuple[str, ...]  # what may stand behind a plus
    options: tuple[Option, ...]


def methods() -> list[Method]:
    """Every method, in the order in which people should meet them."""
    result = []
    for info in _core.methods():
        options = tuple(
            Option(**{**option, "choices": tuple(option["choices"])})
            for option in info.pop("options")
        )
        info["composes_with"] = tuple(info["composes_with"])
        result.append(Method(options=options, **info))
    return result


def spec_text(spec: str) -> str:
    """The spec with every option spelled out; raises BadSpec when it is none."""
    return _core.spec_text(spec)


def spec_momentum(spec: str) -> float:
    """The momentum inside what the spec hands back; 0: the optimizer's own is welcome."""
    return _core.spec_momentum(spec)


def simd_target() -> str:
    """The instruction set that the kernels run on."""
    return _core.simd_target()
