"""DDP buckets in flight, and groups whose parameters lie in several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from ._outcome import Outcome
from .groups import Group, Visit


class GradientBucket(Protocol):
    """A bucket to reduce: a GradBucket of DDP, or an object with the same methods."""

    def index(self) -> int:
        """Returns 0 for the first bucket of a step."""

    def buffer(self) -> torch.Tensor: ...

    def parameters(self) -> Sequence[torch.Tensor]:
        """Returns tensors with the shapes of the gradients in the buffer, the same ones in every
        step."""

    def is_last(self) -> bool:
        """Returns whether no other bucket of the step follows."""


class DdpBucket:
    """A DDP bucket in flight. It is done when all its groups are."""

    def __init__(self, buffer: torch.Tensor, outcome: Outcome) -> None:
        self.buffer = buffer
        # The engine reduces float32 in host memory.
        self.direct = (
            buffer.device.type == "cpu" and buffer.dtype == torch.float32 and buffer.is_contiguous()
        )
        self.host = buffer if self.direct else buffer.to("cpu", torch.float32, copy=True)
        self.groups_left = 0
        self._outcome = outcome
        self._error: BaseException | None = None
        devices: list[int | str | torch.device] | None = None
        if buffer.device.type == "cuda":
            devices = [buffer.device]
        self._done: torch.futures.Future[torch.Tensor | BaseException] = torch.futures.Future(
            devices=devices
        )
        # DDP sees only errors that a callback raises, not those of set_exception().
        self.future: torch.futures.Future[torch.Tensor] = self._done.then(_result_or_raise)

    def finish(self, error: BaseException | None) -> None:
        """Ends one group. After the last one the future is complete, whatever happens here, because
        backward() waits for it."""
        self._error = self._error or error
        self.groups_left -= 1
        if self.groups_left > 0:
            return
        try:
            self._copy_back()
        except BaseException as caught:  # raised by backward()
            self._outcome.note(caught)
            self._error = caught
        self._done.set_result(self._error or self.buffer)

    def _copy_back(self) -> None:
        if self._error is None:
            if not self.direct:
                self.buffer.copy_(self.host)
        elif self._outcome.note(self._error):
            self.buffer.fill_(math.nan)
            self._error = None


def _result_or_raise(done: torch.futures.Future[torch.Tensor | BaseException]) -> torch.Tensor:
    result = done.value()
    if isinstance(result, BaseException):
        raise result
    return result


class Gathering:
    """A group whose parameters come from several DDP buckets, or in another order."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.missing = set(range(len(group.members)))
        self.parts: list[tuple[DdpBucket, Visit]] = []

    def take(self, bucket: DdpBucket, visit: Visit) -> None:
        """Copies the group's gradients in a DDP bucket to the staging buffer."""
        staging = self.group.staging()
        for piece in visit.pieces:
            member = self.group.members[piece.member]
            staging[member.offset : member.offset + member.elements].copy_(
                bucket.host[piece.bucket_offset : piece.bucket_offset + member.elements]
            )
            self.missing.discard(piece.member)
        self.parts.append((bucket, visit))

    def clear_missing(self) -> None:
        """Sets the gradients of parameters that no DDP bucket holds to 0."""
        staging = self.group.staging()
        for index in self.missing:
            member = self.group.members[index]
            staging[member.offset : member.offset + member.elements].zero_()

    def finish(self, error: BaseException | None) -> None:
        """Ends the group in every DDP bucket that holds a part of it."""
        if error is None:
            try:
                self._scatter()
            except BaseException as caught:  # raised by backward()
                error = caught
        for bucket, _ in self.parts:
            bucket.finish(error)

    def _scatter(self) -> None:
        staging = self.group.staging()
        for bucket, visit in self.parts:
            for piece in visit.pieces:
                member = self.group.members[piece.member]
                bucket.host[piece.bucket_offset : piece.bucket_offset + member.elements].copy_(
                    staging[member.offset : member.offset + member.elements]
                )
