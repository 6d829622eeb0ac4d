"""Reduces DDP's buckets over a session: the work of the hook in every step."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import torch

from . import _core
from ._buckets import DdpBucket, Gathering, GradientBucket
from ._interrupts import watch
from ._outcome import Outcome
from ._worker import Report, Worker
from .errors import BadInput, BadState, describe
from .groups import WARM_UP_ID, Group, Groups, Visit, is_sent_raw, memory_shape
from .names import Names
from .stats import Stats

if TYPE_CHECKING:
    from .second_moment import SecondMoment


Target = Union[DdpBucket, Gathering]  # what is finished when a bucket of the engine is reduced


class Progress:
    """The part of a State that counts and grows with its steps, and that is saved."""

    def __init__(self, groups: Groups, step: int = 0, warm_up_buckets: int = 0) -> None:
        self.groups = groups
        self.step = step  # number of steps that have begun
        self.warm_up_buckets = warm_up_buckets  # number of ids that they have used

    def as_dict(self) -> dict[str, Any]:
        """Returns what a rank must know to go on from here."""
        return {
            "step": self.step,
            "groups": self.groups.as_list(),
            "warm_up_buckets": self.warm_up_buckets,
        }

    def as_bytes(self) -> bytes:
        return json.dumps(self.as_dict()).encode()


class Reduction:
    """Reduces the DDP buckets of a State. It exists as long as the State is connected."""

    def __init__(
        self,
        session: _core.Session,
        progress: Progress,
        *,
        uncompressed_steps: int,
        names: Names,
        outcome: Outcome,
        second_moment: SecondMoment | None,
        gathers: bool,
    ) -> None:
        """``gathers``: whether a bucket may wait for others that hold parts of its groups."""
        self.session = session
        self.worker = Worker(session)
        self.stats = Stats()
        self._uncompressed_steps = uncompressed_steps
        self._names = names
        self._outcome = outcome
        self._second_moment = second_moment
        self._gathers = gathers
        self._without_moment: set[str] = set()  # names that were in a warning
        self.restart(progress)

    def restart(self, progress: Progress) -> None:
        """Continues from other progress, after the session has loaded the state that belongs to
        it."""
        self.progress = progress
        self._begun = False  # whether progress.step counts a step that may be taken back
        self.plans: dict[tuple[int, ...], list[Visit]] = {}
        self._warm_up: dict[tuple[int, ...], _core.Bucket] = {}
        self._gathering: dict[int, Gathering] = {}
        self._outcome.failed = False

    def settle(self) -> None:
        """Waits for the buckets in flight. If the last step failed or was skipped, puts the engine
        back to the state before it: some buckets may have been reduced, and their means are lost.
        """
        self.worker.drain()
        self._gathering.clear()
        if self._outcome.failed:
            self.session.undo_step()
            self._outcome.failed = False

    def reconfigure(self, connection: _core.Connection) -> dict[str, Any]:
        """Goes on in another world, and counts the step that was taken back as not begun."""
        self.worker.drain()
        self._gathering.clear()
        change = self.session.reconfigure(connection)
        self._outcome.failed = False
        if change["repeat"] and self._begun:
            self.progress.step -= 1
            self._begun = False
        return change

    def reduce(self, bucket: GradientBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the reduction of a DDP bucket. An exception ends the session: the other ranks
        submit buckets that this one never will."""
        try:
            return self._start(bucket)
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> None:
        """Ends the session, because of an error of this rank, on all ranks."""
        self._outcome.cause = error
        self.session.abandon(describe(error))

    def _start(self, bucket: GradientBucket) -> torch.futures.Future[torch.Tensor]:
        watch.forget()
        if bucket.index() == 0:
            self._begin_step()
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise BadInput(
                f"DDP bucket {bucket.index()} has sparse gradients ({buffer.layout}), which can't "
                "be reduced; use dense ones, for example Embedding(sparse=False)"
            )
        one = DdpBucket(buffer, self._outcome)
        if self.progress.step <= self._uncompressed_steps:
            self._reduce_uncompressed(one, bucket)
        else:
            self._reduce_groups(one, bucket)
        return one.future

    def _begin_step(self) -> None:
        self.settle()
        self._outcome.begin_step()
        self.session.begin_step()
        self.progress.step += 1
        self._begun = True

    def _reduce_uncompressed(self, one: DdpBucket, bucket: GradientBucket) -> None:
        one.groups_left = 1
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        known = self._warm_up.get(key)
        if known is None:
            layout = _core.Layout(
                id=WARM_UP_ID + self.progress.warm_up_buckets,
                elements=one.host.numel(),
                tensors=self._named_shapes(parameters, one.host.numel()),
                spec="fp32",
            )
            self.progress.warm_up_buckets += 1
            known = self._warm_up[key] = self.session.add_bucket(layout)
        self._submit(known, one.host, one)
        if bucket.is_last() and self._second_moment is not None:
            self._second_moment.forget()

    def _reduce_groups(self, one: DdpBucket, bucket: GradientBucket) -> None:
        visits = self._plan(bucket.parameters(), one.host.numel())
        one.groups_left = len(visits)
        if not self._gathers and not all(visit.whole for visit in visits):
            raise BadState(
                "the saved state was written with other calls of fully_shard(), or parameters have "
                "stopped or begun to train since; shard the model in the same way"
            )
        for visit in visits:
            if visit.whole:
                start = visit.pieces[0].bucket_offset
                values = one.host[start : start + visit.group.elements]
                self._submit_group(visit.group, values, one)
            else:
                self._gather(one, visit)
        if bucket.is_last():
            for gathering in self._gathering.values():
                gathering.clear_missing()
                self._submit_group(gathering.group, gathering.group.staging(), gathering)
            self._gathering.clear()
            self._warn_of_missing_moments()

    def _plan(self, parameters: Sequence[torch.Tensor], elements: int) -> list[Visit]:
        key = tuple(map(id, parameters))
        plan = self.plans.get(key)
        if plan is None:
            shapes = self._named_shapes(parameters, elements)
            plan = self.plans[key] = self.progress.groups.visits(shapes)
        return plan

    def _named_shapes(
        self, parameters: Sequence[torch.Tensor], elements: int
    ) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the names and shapes of a DDP bucket's parameters, in memory order."""
        self._names.note(parameters)
        own = sum(one.numel() for one in parameters)
        if own != elements:
            raise BadInput(
                f"a DDP bucket has {elements} elements and its parameters have {own}; torch "
                f"{torch.__version__} lays out buckets in a way that thinreduce does not support"
            )
        return [(self._names.of(one), memory_shape(one)) for one in parameters]

    def _gather(self, one: DdpBucket, visit: Visit) -> None:
        gathering = self._gathering.get(visit.group.number)
        if gathering is None:
            gathering = self._gathering[visit.group.number] = Gathering(visit.group)
        gathering.take(one, visit)
        if not gathering.missing:
            del self._gathering[visit.group.number]
            self._submit_group(visit.group, visit.group.staging(), gathering)

    def _submit_group(self, group: Group, values: torch.Tensor, target: Target) -> None:
        moment = None
        if self._second_moment is not None:
            moment = self._second_moment.gather(group.members, group.moments(), self._names, values)
        self._submit(group.bucket(self.session), values, target, moment)

    def _submit(
        self,
        bucket: _core.Bucket,
        values: torch.Tensor,
        target: Target,
        moment: torch.Tensor | None = None,
    ) -> None:
        pending = self.session.submit(
            bucket, values.data_ptr(), 0 if moment is None else moment.data_ptr()
        )
        stats, step = self.stats, self.progress.step

        def done(report: Report | None, error: BaseException | None) -> None:
            # Keeps `values` and `moment` alive until here, because the engine uses their memory.
            nonlocal values, moment
            try:
                if report is not None:
                    stats.add(step, report)
            except BaseException as caught:  # raised by backward()
                error = caught
            target.finish(error)
            del values, moment

        self.worker.add(pending, done)

    def _warn_of_missing_moments(self) -> None:
        """Names the compressed parameters that SecondMoment knows nothing about, once."""
        if self._second_moment is None:
            return
        found = self._second_moment.missing - self._without_moment
        if not found:
            return
        self._without_moment |= found
        compressed = sorted(
            member.name
            for group in self.progress.groups.all
            for member in group.members
            if member.name in found and not is_sent_raw(member.shape, self.progress.groups.min_size)
        )
        if compressed:
            warnings.warn(
                "SecondMoment has no second moments of the parameters "
                + ", ".join(f"'{name}'" for name in compressed)
                + "; the gradient of a step counts as one sample for them",
                stacklevel=2,
            )
