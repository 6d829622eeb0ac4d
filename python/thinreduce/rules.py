"""Which spec serves which parameter."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Union

from . import _core
from .errors import BadSpec

Spec = Union[str, Mapping[str, str]]


class Rules:
    """Name patterns, in order; the first that matches decides."""

    def __init__(self, spec: Spec) -> None:
        patterns = {"*": spec} if isinstance(spec, str) else dict(spec)
        if not patterns:
            raise BadSpec("no rules were given; a rule is a name pattern and a spec, as {'*': 'dqsg'}")
        # Every option is spelled out, so that equal rules have equal text on all ranks.
        self.patterns: dict[str, str] = {
            pattern: _core.spec_text(one) for pattern, one in patterns.items()
        }
        momenta = {one: _core.spec_momentum(one) for one in self.patterns.values()}
        if len(set(momenta.values())) > 1:
            raise BadSpec(
                "rules mix methods with momentum inside and without, or with different momentum: "
                + ", ".join(f"'{one}' has {value:g}" for one, value in momenta.items())
                + "; an optimizer can only suit one of them"
            )
        self.momentum: float = next(iter(momenta.values()))

    @property
    def need_names(self) -> bool:
        """Whether the names of the parameters make a difference."""
        return any(pattern != "*" for pattern in self.patterns)

    def spec_for(self, name: str) -> str:
        for pattern, spec in self.patterns.items():
            if fnmatchcase(name, pattern):
                return spec
        raise BadSpec(
            f"no rule matches parameter '{name}'; the rules are "
            + ", ".join(f"'{pattern}'" for pattern in self.patterns)
            + "; end them with '*'"
        )

    def __str__(self) -> str:
        return "; ".join(f"{pattern} = {spec}" for pattern, spec in self.patterns.items())
