"""The connection of a State to the other ranks: it begins, goes on in a new world, and ends."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, TypeVar

import torch

from . import _core
from ._arguments import check_type
from ._interrupts import watch
from ._outcome import Outcome
from ._reduction import Progress, Reduction
from ._rendezvous import check_group, members_of, refuse_unless_group_is_clear
from ._state_options import StateOptions, check_world
from ._worker import Worker
from .errors import BadInput, BadSpec, BadState, describe
from .names import Names

if TYPE_CHECKING:
    from .second_moment import SecondMoment

Self = TypeVar("Self", bound="ConnectedState")


class Reconfiguration(NamedTuple):
    """The outcome of :meth:`State.reconfigure`. Old ranks are numbers of the old world."""

    steps: int
    """Number of steps that all ranks have completed since the first State connected."""
    repeat: bool
    """Whether the step that this rank had begun was taken back: compute its gradients again.
    Otherwise a step whose commit() failed is complete, and ``optimizer.step()`` comes next."""
    lost: list[int]
    """Old ranks that are gone, with the gradient that they had not sent."""
    left: list[int]
    """Old ranks that left with ``commit(leave=True)``; their unsent gradient was kept."""
    joined: list[int]
    """New ranks that were not in the old world."""
    source: int
    """The first new rank that was in the old world."""
    seconds: float
    """Duration of the call in the engine."""
    text: str
    """All fields in words."""


class ConnectedState:
    """A State as far as the other ranks are concerned; :class:`State` adds the hook's work."""

    _options: StateOptions
    _gathers: bool  # whether a group may lie in several buckets

    def _reset(
        self,
        process_group: torch.distributed.ProcessGroup | None = None,
        second_moment: SecondMoment | None = None,
    ) -> None:
        check_group(process_group)
        self._names = Names()
        self._process_group = process_group
        self._second_moment = second_moment
        self._outcome = Outcome(skip=self._options.nonfinite == "skip")
        self._progress = Progress(self._options.new_groups())
        self._loaded: dict[str, Any] | None = None  # until the session exists
        self._reduction: Reduction | None = None  # once connected
        self._close: Callable[[], Any] | None = None

    def bind(self: Self, model: torch.nn.Module) -> Self:
        """Gives the State the names of the model's parameters and, if it is a DDP model, its
        process group, as ``model=`` does. Must be called before the first step."""
        check_type("model", model, torch.nn.Module, "a torch.nn.Module")
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self._use_group(model.process_group)
            model = model.module
        self._bind(list(model.named_parameters()))
        return self

    def _bind(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        if self._options.rules.need_names:
            self._options.rules.check_names([name for name, _ in named])
        self._names.bind(named)

    def _use_group(self, group: torch.distributed.ProcessGroup) -> None:
        settled = self._process_group is not None or self._reduction is not None
        if settled and members_of(self._process_group) != members_of(group):
            raise BadInput(
                f"the State's process group has the ranks {members_of(self._process_group)}, and "
                f"the DDP model's has {members_of(group)}; omit process_group=, or give the "
                "model's"
            )
        if not settled:
            self._process_group = group

    def connect(self: Self) -> Self:
        """Connects to the other ranks of the process group now instead of in the first step."""
        self._connected()
        return self

    def _connected(self) -> Reduction:
        if self._reduction is not None:
            return self._reduction
        if self._options.rules.need_names and not self._names.bound:
            raise BadSpec(
                f"the rules '{self._options.rules}' depend on the names of the parameters: give "
                "the State model=, or call bind(model)"
            )
        if self._process_group is None:
            refuse_unless_group_is_clear()
        return self._begin(self._options.connect(self._process_group))

    def _begin(self, connection: _core.Connection) -> Reduction:
        session = _core.Session(connection, self._options.for_session())
        if self._loaded is not None:
            try:
                self._check_world(self._loaded)
                session.load(self._loaded["engine"])
            except BaseException as error:  # the others are connected by now
                session.abandon(describe(error))
                session.close()
                raise
            self._loaded = None
        self._reduction = Reduction(
            session,
            self._progress,
            uncompressed_steps=self._options.uncompressed_steps,
            names=self._names,
            outcome=self._outcome,
            second_moment=self._second_moment,
            gathers=self._gathers,
        )
        self._close = weakref.finalize(self, Worker.close, self._reduction.worker)
        watch.install()
        return self._reduction

    def commit(self, leave: bool = False) -> list[int]:
        """Ends a step, between ``backward()`` and ``optimizer.step()``: waits until all ranks have
        reduced all their buckets. This costs one latency, and lets :meth:`reconfigure` go on from
        this step. With ``leave``, this rank hands the gradient that it has not sent yet to another
        one, and must then be closed. Returns the ranks that leave: the others must do
        ``optimizer.step()`` and then call :meth:`reconfigure`."""
        reduction = self._connected()
        reduction.settle()
        return reduction.session.commit_step(leave)

    def reconfigure(
        self, process_group: torch.distributed.ProcessGroup | None = None
    ) -> Reconfiguration:
        """Goes on with the ranks of a new process group, after a rank was lost, leaves or joins.

        All its ranks must call it, a new one with a State that has not connected yet. They go on
        from the last step that all of them have completed. The new group must have a store of its
        own (``init_process_group()``), and a new DDP model must be made for it and registered with
        this State; DDP gives all ranks the parameters of rank 0, which must not be a new rank.
        Every step must call :meth:`commit`. If ``repeat`` is False, the old ranks must do
        ``optimizer.step()``, and then send the parameters to the ranks in ``joined``: those that
        DDP has sent are from before that step. For example::

            try:
                with state.errors():
                    loss.backward()
                    state.commit()
            except (thinreduce.LostPeer, thinreduce.Timeout):
                model = meet_again()  # a new process group, and a DDP model for it
                if state.reconfigure().repeat:
                    continue  # compute this step's gradients again
            optimizer.step()

        After an exception, it may be called again with another group.
        """
        check_group(process_group)
        connection = self._options.connect(process_group, new_world=True)
        if self._reduction is None:
            self._begin(_core.connect_inside(1)[0])  # a world of its own, to join from
        reduction = self._connected()
        change = Reconfiguration(**reduction.reconfigure(connection))
        self._process_group = process_group
        # The new DDP models have buckets of their own: all ranks must go on with the same numbers.
        told = reduction.session.broadcast(change.source, reduction.progress.as_bytes())
        self._progress = self._progress_of(json.loads(told))
        reduction.restart(self._progress)
        return change

    def close(self) -> None:
        """Finishes the buckets in flight and disconnects from the other ranks.

        This happens by itself when the State is garbage-collected or the program ends.
        """
        if self._close is not None:
            self._close()

    def _progress_of(self, state: dict[str, Any]) -> Progress:
        groups = self._options.new_groups()
        for group in state["groups"]:
            groups.add(group["spec"], group["parameters"])
        return Progress(groups, state["step"], state["warm_up_buckets"])

    def _check_world(self, state: dict[str, Any]) -> None:
        group = self._process_group
        check_world(
            state, torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        )
        if state["named"] and not self._names.bound:
            raise BadState(
                "the saved state knows its parameters by name, and this State has no model: give "
                "it model=, or call bind(model)"
            )
