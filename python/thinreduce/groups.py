"""Which parameters travel together, whatever buckets DDP puts them in.

The engine keeps a method's state by bucket of its own. Such a bucket is here called a *group*: a run
of parameters with one spec. Groups are made from DDP's buckets when a parameter is compressed for
the first time, and then stay: when DDP rebuilds its buckets, or a resumed run starts with others,
the groups' gradients are gathered from wherever they are, and every bit is as it would have been.
As long as a group lies in one DDP bucket in one piece, it is reduced there, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from . import _core
from .errors import BadState
from .rules import Rules

# The engine's numbers of uncompressed buckets start here; groups are numbered from 0.
WARM_UP_ID = 0x4000_0000


def memory_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape in the order of memory, which is how DDP lays the gradient out."""
    order = sorted(range(parameter.dim()), key=lambda axis: -parameter.stride(axis))
    return tuple(parameter.shape[axis] for axis in order)


def travels_raw(shape: Sequence[int], min_size: int) -> bool:
    """Whether the engine sends such a tensor uncompressed, whatever the spec."""
    count = 1
    for extent in shape:
        count *= extent
    return len(shape) < 2 or count < min_size


@dataclass(frozen=True)
class Member:
    """One parameter of a group."""

    name: str
    shape: tuple[int, ...]
    offset: int
    elements: int


class Group:
    """A run of parameters that the engine reduces together."""

    def __init__(self, number: int, spec: str, named_shapes: Sequence[tuple[str, Sequence[int]]]):
        self.number = number
        self.spec = spec
        self.members: list[Member] = []
        offset = 0
        for name, shape in named_shapes:
            elements = 1
            for extent in shape:
                elements *= extent
            self.members.append(Member(name, tuple(shape), offset, elements))
            offset += elements
        self.elements = offset
        self.layout = _core.Layout(
            id=number,
            elements=offset,
            tensors=[(member.name, list(member.shape)) for member in self.members],
            spec=spec,
        )
        self._staging: Optional[torch.Tensor] = None
        self._moments: Optional[torch.Tensor] = None

    def staging(self) -> torch.Tensor:
        """Where the gradient is gathered when it is not in one piece."""
        if self._staging is None:
            self._staging = torch.empty(self.elements, dtype=torch.float32)
        return self._staging

    def moments(self) -> torch.Tensor:
        """Where the second moments of the members are put side by side."""
        if self._moments is None:
            self._moments = torch.empty(self.elements, dtype=torch.float32)
        return self._moments

    def as_dict(self) -> dict[str, Any]:
        return {
            "spec": self.spec,
            "parameters": [(member.name, list(member.shape)) for member in self.members],
        }


@dataclass
class Piece:
    """A parameter that is both in a DDP bucket and in a group."""

    member: int
    bucket_offset: int


@dataclass
class Visit:
    """What one DDP bucket holds of one group."""

    group: Group
    pieces: list[Piece] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """The whole group, in one piece and in order: no copy is needed."""
        members = self.group.members
        if len(self.pieces) != len(members):
            return False
        start = self.pieces[0].bucket_offset
        return all(
            piece.member == index and piece.bucket_offset == start + members[index].offset
            for index, piece in enumerate(self.pieces)
        )


class Groups:
    """All groups of a State, by the names of their parameters."""

    def __init__(self, rules: Rules, min_size: int) -> None:
        self._rules = rules
        self._min_size = min_size
        self.all: list[Group] = []
        self._of: dict[str, tuple[Group, int]] = {}

    def add(self, spec: str, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> None:
        group = Group(len(self.all), spec, named_shapes)
        self.all.append(group)
        for index, member in enumerate(group.members):
            self._of[member.name] = (group, index)

    def as_list(self) -> list[dict[str, Any]]:
        return [group.as_dict() for group in self.all]

    def visits(self, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> list[Visit]:
        """The groups of a bucket with these parameters; makes groups for those that have none."""
        self._make_missing(named_shapes)
        visits: dict[int, Visit] = {}
        offset = 0
        for name, shape in named_shapes:
            group, index = self._of[name]
            member = group.members[index]
            if member.shape != tuple(shape):
                raise BadState(
                    f"parameter '{name}' has shape {tuple(shape)}; its saved state is for "
                    f"{member.shape}"
                )
            visit = visits.setdefault(group.number, Visit(group))
            visit.pieces.append(Piece(index, offset))
            offset += member.elements
        return list(visits.values())

    def _make_missing(self, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> None:
        run: list[tuple[str, Sequence[int]]] = []
        spec: Optional[str] = None  # of the run; None while all of it travels raw

        def finish() -> None:
            nonlocal run, spec
            if run:
                self.add(spec or self._rules.spec_for(run[0][0]), run)
            run, spec = [], None

        for name, shape in named_shapes:
            if name in self._of:
                finish()
                continue
            # A raw tensor has no state, so it may go with any neighbour: fewer, larger groups.
            own = self._rules.spec_for(name)
            if not travels_raw(shape, self._min_size):
                if spec is not None and own != spec:
                    finish()
                spec = own
            run.append((name, shape))
        finish()
