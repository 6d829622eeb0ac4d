"""Chooses the spec for each parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Union

from . import _core
from ._arguments import shown, spec_text
from .errors import BadSpec

Spec = Union[str, Mapping[str, str]]


class Rules:
    """An ordered list of (name pattern, spec); the first pattern that matches a name decides.

    Patterns are those of the shell: "fc.*", "*.weight". One spec without a pattern is the rule "*".
    """

    def __init__(self, spec: Spec) -> None:
        if not isinstance(spec, (str, Mapping)):
            raise BadSpec(
                "the spec must be a string, such as 'dqsg', or rules, such as {'*': 'dqsg'}; it is "
                f"{spec!r}"
            )
        patterns = {"*": spec} if isinstance(spec, str) else dict(spec)
        if not patterns:
            raise BadSpec(
                "the rules are empty; give at least one name pattern and its spec, such as "
                "{'*': 'dqsg'}"
            )
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise BadSpec(
                    "the rules must map name patterns, which are strings such as 'fc.*', to specs; "
                    f"one pattern is {shown(pattern)}"
                )
        # Every option is written out, so that equal rules have equal text on all ranks.
        self.patterns: dict[str, str] = {
            pattern: spec_text(one) for pattern, one in patterns.items()
        }
        inside = {one: _core.momentum_inside(one) for one in self.patterns.values()}
        self.momentum_inside = all(inside.values())
        specs = self.patterns.values()
        self.hands_out_signs = all(_core.hands_out_signs(one) for one in specs)
        # The options, such as "momentum=0", with which the methods apply no momentum.
        self.without_momentum = " and ".join(sorted({_core.without_momentum(one) for one in specs}))
        if any(inside.values()) and not self.momentum_inside:
            raise BadSpec(
                "the rules mix methods that apply momentum themselves with others: "
                + ", ".join(
                    f"'{one}' {'does' if own else 'does not'}" for one, own in inside.items()
                )
                + "; one optimizer can match only one kind"
            )

    @property
    def need_names(self) -> bool:
        """Whether the choice depends on the names of the parameters."""
        return any(pattern != "*" for pattern in self.patterns)

    def check_names(self, names: Collection[str]) -> None:
        """Raises BadSpec if no pattern matches one of the names, or if a pattern other than "*"
        decides for none of them."""
        for name in names:
            self.spec_for(name)
        deciding = {self._pattern_for(name) for name in names}
        for pattern in self.patterns:
            if pattern not in deciding and pattern != "*":
                raise BadSpec(
                    f"the rule '{pattern}' applies to no parameter: none has such a name, or rules "
                    "before it match all that have; the model's parameters are "
                    + ", ".join(f"'{name}'" for name in names)
                )

    def _pattern_for(self, name: str) -> str | None:
        return next((one for one in self.patterns if fnmatchcase(name, one)), None)

    def spec_for(self, name: str) -> str:
        """Returns the spec of the first pattern that matches; raises BadSpec if none does."""
        pattern = self._pattern_for(name)
        if pattern is not None:
            return self.patterns[pattern]
        raise BadSpec(
            f"no rule matches parameter '{name}'; the patterns are "
            + ", ".join(f"'{pattern}'" for pattern in self.patterns)
            + "; add '*' as the last pattern"
        )

    def __str__(self) -> str:
        return "; ".join(f"{pattern} = {spec}" for pattern, spec in self.patterns.items())
