"""The DDP communication hook, and the state that it works on."""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from . import _core
from ._interrupts import watch
from ._rendezvous import connect_group
from ._worker import Worker
from .errors import BadInput, BadSpec, BadState
from .groups import WARM_UP_ID, Group, Groups, Visit, memory_shape
from .names import Names
from .rules import Rules, Spec
from .stats import Stats

_FORMAT = 1


def _refuse_momentum(spec: str, optimizer: torch.optim.Optimizer) -> None:
    for number, options in enumerate(optimizer.param_groups):
        momentum = options.get("momentum", 0) or (options.get("betas") or (0,))[0]
        if momentum:
            raise BadSpec(
                f"'{spec}' hands back an update with momentum inside, and "
                f"{type(optimizer).__name__} would apply its own ({momentum:g} in parameter group "
                f"{number}) again: set the optimizer's momentum to 0, or use momentum=0 in the spec"
            )


class _Bucket:
    """A DDP bucket on its way: done when all its groups are."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        # The engine works on float32 in host memory.
        self.direct = (
            buffer.device.type == "cpu" and buffer.dtype == torch.float32 and buffer.is_contiguous()
        )
        self.host = buffer if self.direct else buffer.to("cpu", torch.float32, copy=True)
        self.groups_left = 0
        self.error: Optional[BaseException] = None
        devices = [buffer.device] if buffer.device.type == "cuda" else None
        self._done: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        # DDP sees only errors that are raised by a callback, not those of set_exception().
        self.future: torch.futures.Future[torch.Tensor] = self._done.then(_result_or_raise)

    def finish(self, error: Optional[BaseException]) -> None:
        self.error = self.error or error
        self.groups_left -= 1
        if self.groups_left > 0:
            return
        if self.error is None and not self.direct:
            self.buffer.copy_(self.host)
        self._done.set_result(self.error or self.buffer)


def _result_or_raise(done: torch.futures.Future[Any]) -> torch.Tensor:
    result = done.value()
    if isinstance(result, BaseException):
        raise result
    return result


class _Gathering:
    """A group whose parameters arrive in more than one piece."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.missing = set(range(len(group.members)))
        self.parts: list[tuple[_Bucket, Visit]] = []

    def take(self, bucket: _Bucket, visit: Visit) -> None:
        staging = self.group.staging()
        for piece in visit.pieces:
            member = self.group.members[piece.member]
            staging[member.offset : member.offset + member.elements].copy_(
                bucket.host[piece.bucket_offset : piece.bucket_offset + member.elements]
            )
            self.missing.discard(piece.member)
        self.parts.append((bucket, visit))

    def finish(self, error: Optional[BaseException]) -> None:
        if error is None:
            self._scatter()
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


class State:
    """What :func:`hook` works on: one for each DDP model.

    ``spec`` is a method and its options (``"gradiveq"``, ``"dqsg:levels=7"``) or rules by name
    pattern, of which the first that matches decides: ``{"fc.*": "powersgd:basis=2", "*": "dqsg"}``.
    Rules with names need ``model``. The first ``warmup_steps`` steps travel uncompressed; so do
    tensors with fewer than ``min_size`` elements and 1-D ones, always. ``seed`` must be the same on
    all ranks. ``link`` simulates a slow network ("1gbit,2ms"); ``interface`` chooses a real one.
    ``timeout`` is the longest silence of a peer in seconds.

    Methods with momentum inside (``sketch:momentum=0.9``) want ``optimizer``, to check that it has
    no momentum of its own, or ``momentum_inside_ok=True`` from a caller who takes care.
    ``second_moment`` feeds the variance method. The connection is made in the first step, or by :meth:`connect`.
    """

    def __init__(
        self,
        spec: Spec = "fp32",
        *,
        model: Optional[torch.nn.Module] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
        second_moment: Optional[Any] = None,
        process_group: Optional[Any] = None,
        warmup_steps: int = 1,
        min_size: int = 1024,
        seed: int = 0,
        link: str = "",
        interface: str = "",
        timeout: float = 60.0,
        connect_timeout: float = 60.0,
        check_replicas_every: int = 100,
        momentum_inside_ok: bool = False,
    ) -> None:
        self._rules = Rules(spec)
        if link:
            _core.check_link(link)
        if warmup_steps < 0 or min_size < 0:
            raise BadInput(f"warmup_steps={warmup_steps} and min_size={min_size} can't be negative")
        self._settings = {
            "warmup_steps": int(warmup_steps),
            "min_size": int(min_size),
            "seed": int(seed),
            "check_replicas_every": int(check_replicas_every),
        }
        self._connection = {
            "link": link,
            "interface": interface,
            "timeout": float(timeout),
            "connect_timeout": float(connect_timeout),
        }
        self._momentum_inside_ok = momentum_inside_ok
        if optimizer is not None and self._rules.momentum != 0:
            _refuse_momentum(str(self._rules), optimizer)
            self._momentum_inside_ok = True
        if self._rules.momentum != 0 and not self._momentum_inside_ok:
            raise BadSpec(
                f"'{self._rules}' hands back an update with momentum inside: give the State the "
                "optimizer=, so that it can check that this one has none, or say "
                "momentum_inside_ok=True, or use momentum=0 in the spec"
            )
        self._reset()
        self._process_group = process_group
        self._second_moment = second_moment
        if model is not None:
            self.bind(model)

    def _reset(self) -> None:
        self._names = Names()
        self._process_group = None
        self._second_moment = None
        self._groups = Groups(self._rules, self._settings["min_size"])
        self._loaded: Optional[dict[str, Any]] = None
        self._session: Optional[_core.Session] = None
        self._worker: Optional[Worker] = None
        self._close: Optional[Any] = None
        self._stats = Stats()
        self._step = 0  # steps that have begun
        self._error: Optional[BaseException] = None
        self._plans: dict[tuple[int, ...], list[Visit]] = {}
        self._warm_up: dict[tuple[int, ...], _core.Layout] = {}
        self._warm_up_buckets = 0
        self._gathering: dict[int, _Gathering] = {}

    # -- connection -------------------------------------------------------------------------------

    def bind(self, model: torch.nn.Module) -> State:
        """Tells the names of the parameters; only before the first step."""
        self._names.bind(model)
        return self

    def connect(self) -> State:
        """Connects to the other ranks of the process group now instead of in the first step."""
        if self._session is not None:
            return self
        if self._rules.need_names and not self._names.bound:
            raise BadSpec(
                f"the rules '{self._rules}' choose by name: give the State its model=, or call bind()"
            )
        connection = connect_group(
            self._process_group,
            interface=self._connection["interface"],
            timeout=self._connection["connect_timeout"],
            link=self._connection["link"],
        )
        # Momentum is kept from the first step on, so such methods warm up inside the engine.
        options = _core.SessionOptions(
            spec=next(iter(self._rules.patterns.values())),
            timeout=self._connection["timeout"],
            min_elements=self._settings["min_size"],
            warmup_steps=self._settings["warmup_steps"] if self._rules.momentum else 0,
            check_replicas_every=self._settings["check_replicas_every"],
            seed=self._settings["seed"],
            momentum_inside_ok=self._momentum_inside_ok,
        )
        self._session = _core.Session(connection, options)
        self._worker = Worker(self._session)
        self._close = weakref.finalize(self, Worker.close, self._worker)
        watch.install()
        if self._loaded is not None:
            self._check_world(self._loaded)
            self._session.load(self._loaded["engine"])
            self._loaded = None
        return self

    def close(self) -> None:
        """Finishes what is under way and leaves the other ranks. Happens by itself at the end."""
        if self._close is not None:
            self._close()

    @property
    def error(self) -> Optional[BaseException]:
        """The last failure of an exchange as it was raised: DDP wraps it in a RuntimeError."""
        return self._error

    # -- the hook's work --------------------------------------------------------------------------

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """What :func:`hook` does."""
        self.connect()
        assert self._worker is not None
        watch.forget()
        if bucket.index() == 0:
            # After a step that failed, some of it may still be under way, or wait for its rest.
            self._worker.drain()
            self._gathering.clear()
            self._step += 1
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise BadInput("sparse gradients can't be compressed; use dense ones (sparse=False)")
        parameters = bucket.parameters()
        one = _Bucket(buffer)
        # Without momentum inside, nothing is kept of an uncompressed step, so it goes as DDP has it.
        if self._step <= self._settings["warmup_steps"] and not self._rules.momentum:
            one.groups_left = 1
            layout = self._warm_up_layout(parameters, buffer.numel())
            self._submit(layout, one.host, one)
            if bucket.is_last() and self._second_moment is not None:
                self._second_moment.forget()
            return one.future
        visits = self._plan(parameters, buffer.numel())
        one.groups_left = len(visits)
        for visit in visits:
            if visit.whole:
                start = visit.pieces[0].bucket_offset
                values = one.host[start : start + visit.group.elements]
                self._submit_group(visit.group, values, one)
            else:
                self._gather(one, visit)
        if bucket.is_last():
            self._submit_incomplete()
        return one.future

    def _key(self, parameters: list[torch.Tensor]) -> tuple[int, ...]:
        return tuple(map(id, parameters))

    def _warm_up_layout(self, parameters: list[torch.Tensor], elements: int) -> _core.Layout:
        self._names.note(parameters)
        key = self._key(parameters)
        layout = self._warm_up.get(key)
        if layout is None:
            number = WARM_UP_ID + self._warm_up_buckets
            self._warm_up_buckets += 1
            layout = _core.Layout(id=number, elements=elements, tensors=[], spec="fp32")
            self._warm_up[key] = layout
        return layout

    def _plan(self, parameters: list[torch.Tensor], elements: int) -> list[Visit]:
        key = self._key(parameters)
        plan = self._plans.get(key)
        if plan is None:
            self._names.note(parameters)
            shapes = [(self._names.of(one), memory_shape(one)) for one in parameters]
            if sum(one.numel() for one in parameters) != elements:
                raise BadInput(
                    f"a DDP bucket has {elements} elements, its parameters "
                    f"{sum(one.numel() for one in parameters)}: this torch lays buckets out in a "
                    "way that thinreduce does not know"
                )
            plan = self._plans[key] = self._groups.visits(shapes)
        return plan

    def _gather(self, one: _Bucket, visit: Visit) -> None:
        gathering = self._gathering.get(visit.group.number)
        if gathering is None:
            gathering = self._gathering[visit.group.number] = _Gathering(visit.group)
        gathering.take(one, visit)
        if not gathering.missing:
            del self._gathering[visit.group.number]
            self._submit_group(visit.group, visit.group.staging(), gathering)

    def _submit_incomplete(self) -> None:
        """Parameters that DDP no longer has count as zero."""
        for gathering in self._gathering.values():
            staging = gathering.group.staging()
            for index in gathering.missing:
                member = gathering.group.members[index]
                staging[member.offset : member.offset + member.elements].zero_()
            self._submit_group(gathering.group, staging, gathering)
        self._gathering.clear()

    def _submit_group(self, group: Group, values: torch.Tensor, target: Any) -> None:
        # The one place where second moments go to the engine: in the group's order of memory.
        moment = None
        if self._second_moment is not None:
            moment = self._second_moment.gather(group.members, group.moments(), self._names)
        self._submit(group.layout, values, target, moment)

    def _submit(
        self,
        layout: _core.Layout,
        values: torch.Tensor,
        target: Any,
        moment: Optional[torch.Tensor] = None,
    ) -> None:
        assert self._session is not None and self._worker is not None
        pending = self._session.submit(
            layout, values.data_ptr(), 0 if moment is None else moment.data_ptr()
        )
        stats, step, state = self._stats, self._step, weakref.ref(self)

        def done(report: Optional[dict[str, Any]], error: Optional[BaseException]) -> None:
            # `values` and `moment` live until here: the engine works on their memory.
            nonlocal values, moment
            if report is not None:
                stats.add(step, report)
            elif (owner := state()) is not None:
                owner._error = error
            try:
                target.finish(error)
            finally:
                del values, moment

        self._worker.add(pending, done)

    # -- state ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Of the last step, and under "total" of all: bytes, ratio, seconds by stage (encode, wire,
        decode, wait for the slowest rank, queued, total) summed over buckets, and the method's
        statistics."""
        return self._stats.as_dict()

    def scalars(self) -> dict[str, dict[str, float]]:
        """The same for TensorBoard: ``for tag, values in state.scalars().items():
        writer.add_scalars(tag, values, step)``."""
        return self._stats.scalars()

    def state_dict(self) -> dict[str, Any]:
        """Residuals and all else that a resumed run needs, of this rank; every rank has its own."""
        if self._session is None:
            if self._loaded is not None:
                return dict(self._loaded)
            raise BadState("there is no state before the first step")
        assert self._worker is not None
        self._worker.drain()
        return {
            "format": _FORMAT,
            "rank": self._session.rank,
            "world": self._session.world,
            "rules": dict(self._rules.patterns),
            "settings": dict(self._settings),
            "step": self._step,
            "named": self._names.bound,
            "groups": self._groups.as_list(),
            "warm_up_buckets": self._warm_up_buckets,
            "engine": self._session.save(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where :meth:`state_dict` of the same rank stopped. Raises BadState for the state
        of another rank, world size or spec; :func:`thinreduce.redistribute` changes the world."""
        if state.get("format") != _FORMAT:
            raise BadState(f"saved state has format {state.get('format')}, this build reads {_FORMAT}")
        if state["rules"] != self._rules.patterns:
            raise BadState(
                f"saved state was written with {state['rules']}, this State has "
                f"{self._rules.patterns}"
            )
        if state["settings"] != self._settings:
            raise BadState(
                f"saved state was written with {state['settings']}, this State has {self._settings}"
            )
        groups = Groups(self._rules, self._settings["min_size"])
        for group in state["groups"]:
            groups.add(group["spec"], group["parameters"])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._check_world(state)
        if self._session is not None:
            assert self._worker is not None
            self._worker.drain()
            self._session.load(state["engine"])
        else:
            self._loaded = dict(state)
        self._groups = groups
        self._plans.clear()
        self._warm_up.clear()
        self._gathering.clear()
        self._step = state["step"]
        self._warm_up_buckets = state["warm_up_buckets"]

    def _check_world(self, state: dict[str, Any]) -> None:
        group = self._process_group
        world = torch.distributed.get_world_size(group)
        rank = torch.distributed.get_rank(group)
        if state["world"] != world:
            raise BadState(
                f"saved state is of a world of {state['world']} ranks, this one has {world}; "
                "thinreduce.redistribute() turns the states of all old ranks into states for the new"
            )
        if state["rank"] != rank:
            raise BadState(f"saved state belongs to rank {state['rank']}, this is rank {rank}")
        if state["named"] and not self._names.bound:
            raise BadState(
                "saved state knows parameters by name: give the State its model=, or call bind()"
            )

    def __getstate__(self) -> dict[str, Any]:
        has_state = self._session is not None or self._loaded is not None
        return {
            "rules": dict(self._rules.patterns),
            "settings": dict(self._settings),
            "connection": dict(self._connection),
            "momentum_inside_ok": self._momentum_inside_ok,
            "state": self.state_dict() if has_state else None,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._rules = Rules(saved["rules"])
        self._settings = saved["settings"]
        self._connection = saved["connection"]
        self._momentum_inside_ok = saved["momentum_inside_ok"]
        self._reset()
        if saved["state"] is not None:
            # The names come with bind(), and connect() compares world and rank.
            self._load_later(saved["state"])

    def _load_later(self, state: dict[str, Any]) -> None:
        for group in state["groups"]:
            self._groups.add(group["spec"], group["parameters"])
        self._loaded = dict(state)
        self._step = state["step"]
        self._warm_up_buckets = state["warm_up_buckets"]

    def __repr__(self) -> str:
        return f"thinreduce.State({self._rules})"


def hook(state: State, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """For ``DistributedDataParallel.register_comm_hook``: returns at once, and the future holds the
    mean over all ranks when the engine's thread is done."""
    return state.reduce(bucket)


# DDP compares the annotations as objects, not as text.
hook.__annotations__ = {
    "state": State,
    "bucket": torch.distributed.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}
