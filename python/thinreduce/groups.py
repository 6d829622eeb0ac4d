"""Maps DDP's buckets, which may change, to groups of parameters, which do not.

A *group* is a bucket of the engine: a run of parameters with one spec, whose residuals the engine
keeps together. Groups are made from DDP's buckets when a parameter is first compressed, and never
change after that. DDP rebuilds its buckets after the first step, and a resumed run starts with
different ones; the gradients of a group are then copied together from several DDP buckets, so the
means have the same bits either way. A group that lies in one DDP bucket in one piece is reduced
there, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _core
from .errors import BadState
from .rules import Rules

# The ids of buckets in uncompressed warm-up steps start here; the ids of groups start at 0.
WARM_UP_ID = 0x4000_0000


def memory_order(parameter: torch.Tensor) -> list[int]:
    """Returns the axes in memory order, as DDP's buckets hold the gradient."""
    strides = parameter.stride()
    return sorted(range(parameter.dim()), key=lambda axis: -strides[axis])


def memory_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape with its axes in memory order."""
    return tuple(parameter.shape[axis] for axis in memory_order(parameter))


def is_sent_raw(shape: Sequence[int], min_size: int) -> bool:
    """Returns whether the engine sends a tensor of this shape uncompressed with every spec."""
    count = 1
    for extent in shape:
        count *= extent
    return len(shape) < 2 or count < min_size


@dataclass(frozen=True)
class Member:
    """One parameter of a group."""

    name: str
    shape: tuple[int, ...]  # in memory order
    offset: int  # of its first element in the group
    elements: int


class Group:
    """A run of parameters that the engine reduces together."""

    def __init__(
        self, number: int, spec: str, named_shapes: Sequence[tuple[str, Sequence[int]]]
    ) -> None:
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
        self._bucket: _core.Bucket | None = None
        self._staging: torch.Tensor | None = None
        self._moments: torch.Tensor | None = None

    def bucket(self, session: _core.Session) -> _core.Bucket:
        """Returns the group's handle; registers the group with the session in the first call."""
        if self._bucket is None:
            layout = _core.Layout(
                id=self.number,
                elements=self.elements,
                tensors=[(member.name, list(member.shape)) for member in self.members],
                spec=self.spec,
            )
            self._bucket = session.add_bucket(layout)
        return self._bucket

    def staging(self) -> torch.Tensor:
        """Returns the buffer for the group's gradient when that is not in one piece."""
        if self._staging is None:
            self._staging = torch.empty(self.elements, dtype=torch.float32)
        return self._staging

    def moments(self) -> torch.Tensor:
        """Returns the buffer for the second moments of the group's parameters."""
        if self._moments is None:
            self._moments = torch.empty(self.elements, dtype=torch.float32)
        return self._moments

    def as_dict(self) -> dict[str, Any]:
        """Returns the group's description for a saved state."""
        return {
            "spec": self.spec,
            "parameters": [(member.name, list(member.shape)) for member in self.members],
        }


@dataclass
class Piece:
    """A parameter of a group, inside a DDP bucket."""

    member: int  # index in Group.members
    bucket_offset: int  # of its first element in the DDP bucket


@dataclass
class Visit:
    """The parameters of one group that one DDP bucket holds."""

    group: Group
    pieces: list[Piece] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the bucket holds the whole group in one piece and in order: no copy is needed."""
        members = self.group.members
        if len(self.pieces) != len(members):
            return False
        start = self.pieces[0].bucket_offset
        return all(
            piece.member == index and piece.bucket_offset == start + members[index].offset
            for index, piece in enumerate(self.pieces)
        )


class Groups:
    """All groups of a State, found by the names of their parameters."""

    def __init__(self, rules: Rules, min_size: int) -> None:
        self._rules = rules
        self.min_size = min_size
        self.all: list[Group] = []
        self._of: dict[str, tuple[Group, int]] = {}

    def add(self, spec: str, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Makes the next group from parameters in the order of their memory."""
        group = Group(len(self.all), spec, named_shapes)
        self.all.append(group)
        for index, member in enumerate(group.members):
            self._of[member.name] = (group, index)

    def as_list(self) -> list[dict[str, Any]]:
        """Returns the groups' descriptions for a saved state."""
        return [group.as_dict() for group in self.all]

    def visits(self, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> list[Visit]:
        """Returns the groups in a DDP bucket; makes groups for parameters that have none."""
        self._make_missing(named_shapes)
        visits: dict[int, Visit] = {}
        offset = 0
        for name, shape in named_shapes:
            group, index = self._of[name]
            member = group.members[index]
            if member.shape != tuple(shape):
                raise BadState(
                    f"parameter '{name}' has shape {tuple(shape)} in memory order, but the saved "
                    f"state was written with shape {member.shape}; load the state of this model"
                )
            visit = visits.setdefault(group.number, Visit(group))
            visit.pieces.append(Piece(index, offset))
            offset += member.elements
        return list(visits.values())

    def _make_missing(self, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> None:
        run: list[tuple[str, Sequence[int]]] = []
        spec: str | None = None  # of the run; None while all its tensors are sent raw

        def finish() -> None:
            nonlocal run, spec
            if run:
                self.add(spec or self._rules.spec_for(run[0][0]), run)
            run, spec = [], None

        for name, shape in named_shapes:
            if name in self._of:
                finish()
                continue
            # A raw tensor has no state and joins any neighbour, which makes fewer, larger groups.
            own = self._rules.spec_for(name)
            if not is_sent_raw(shape, self.min_size):
                if spec is not None and own != spec:
                    finish()
                spec = own
            run.append((name, shape))
        finish()
