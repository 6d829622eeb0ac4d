"""Lists the methods and reads specs."""

from __future__ import annotations

from dataclasses import dataclass

from . import _arguments, _core


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    default: str
    #: The smallest and the largest value of a number; both are 0 for an option that is a word.
    min: float
    max: float
    #: All values of an option that is a word; for a number, the words that are accepted as well.
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Preset:
    """A named set of options: ``preset=name`` in a spec stands for them."""

    name: str
    #: The options as in a spec, such as "density=0.01,feedback=off".
    options: str
    help: str


@dataclass(frozen=True)
class Method:
    """A compression method and its options."""

    name: str
    #: How payloads combine: "sum" (they add as floats), "integer sum" (codes add as integers),
    #: "gather" (every rank decodes all payloads) or "staged" (the mean of one group of ranks helps
    #: to decode the others).
    algebra: str
    summary: str
    paper: str
    #: Whether it needs the second moments of the gradient.
    second_moment: bool
    #: Methods that may follow it after a plus, to quantize what it sends ("gradiveq+qsgd").
    composes_with: tuple[str, ...]
    options: tuple[Option, ...]
    presets: tuple[Preset, ...]


def methods() -> list[Method]:
    """Returns all methods, in the order in which ``thinreduce methods`` prints them."""
    result = []
    for info in _core.methods():
        options = tuple(
            Option(**{**option, "choices": tuple(option["choices"])})
            for option in info.pop("options")
        )
        presets = tuple(Preset(**preset) for preset in info.pop("presets"))
        info["composes_with"] = tuple(info["composes_with"])
        result.append(Method(options=options, presets=presets, **info))
    return result


def spec_text(spec: str) -> str:
    """Returns the spec with every option written out; raises BadSpec if it is not valid."""
    return _arguments.spec_text(spec)


def momentum_inside(spec: str) -> bool:
    """Returns whether the method applies momentum itself, as "sketch:momentum=0.9" does.

    The optimizer must then not apply momentum again.
    """
    return _core.momentum_inside(_arguments.spec_text(spec))


def simd_target() -> str:
    """Returns the instruction set that the kernels use, such as "AVX2".

    The environment variable THINREDUCE_SIMD chooses another one; results do not depend on it.
    """
    return _core.simd_target()
