"""The DDP communication hook and its state."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Callable

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

if TYPE_CHECKING:
    from .second_moment import SecondMoment

_FORMAT = 1


@dataclasses.dataclass
class _Network:
    link: str
    interface: str
    timeout: float
    connect_timeout: float


def _refuse_momentum(spec: str, optimizer: torch.optim.Optimizer) -> None:
    for number, options in enumerate(optimizer.param_groups):
        momentum = options.get("momentum", 0) or (options.get("betas") or (0,))[0]
        if momentum:
            raise BadSpec(
                f"'{spec}' applies momentum itself, and {type(optimizer).__name__} would apply its "
                f"own ({momentum:g} in parameter group {number}) again: set the optimizer's "
                "momentum to 0, or use momentum=0 in the spec"
            )


class _Bucket:
    """A DDP bucket in flight. It is done when all its groups are."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        # The engine reduces float32 in host memory.
        self.direct = (
            buffer.device.type == "cpu" and buffer.dtype == torch.float32 and buffer.is_contiguous()
        )
        self.host = buffer if self.direct else buffer.to("cpu", torch.float32, copy=True)
        self.groups_left = 0
        self.error: BaseException | None = None
        devices = [buffer.device] if buffer.device.type == "cuda" else None
        self._done: torch.futures.Future[torch.Tensor | BaseException] = torch.futures.Future(
            devices=devices
        )
        # DDP sees only errors that a callback raises, not those of set_exception().
        self.future: torch.futures.Future[torch.Tensor] = self._done.then(_result_or_raise)

    def finish(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self.groups_left -= 1
        if self.groups_left > 0:
            return
        if self.error is None and not self.direct:
            self.buffer.copy_(self.host)
        self._done.set_result(self.error or self.buffer)


def _result_or_raise(done: torch.futures.Future[torch.Tensor | BaseException]) -> torch.Tensor:
    result = done.value()
    if isinstance(result, BaseException):
        raise result
    return result


class _Gathering:
    """A group whose parameters come from several DDP buckets, or in another order."""

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

    def finish(self, error: BaseException | None) -> None:
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
    """The state of :func:`hook`. Each DDP model needs its own; see there for an example.

    ``spec``: a method with options, such as "gradiveq" or "dqsg:levels=7"; or rules by parameter
    name, such as ``{"fc.*": "powersgd:basis=2", "*": "dqsg"}``, of which the first that matches
    decides. Tensors that are 1-D or have fewer than ``min_size`` elements are sent uncompressed.
    ``model``: the model, for the names of its parameters. Rules need it, and so does resuming with
    other DDP settings.
    ``optimizer``: for methods that apply momentum themselves ("sketch:momentum=0.9"): checks that
    the optimizer applies none. ``momentum_inside_ok=True`` says that the caller has checked it.
    ``second_moment``: a :class:`SecondMoment` of the model; the variance method uses it.
    ``process_group``: the process group that DDP uses, if it is not the default one.
    ``warmup_steps``: number of steps at the start that are sent uncompressed.
    ``seed``: seed of the methods' random numbers; it must be the same on all ranks.
    ``link``: a slow network to simulate, such as "1gbit,2ms" (bandwidth, latency).
    ``interface``: the network interface to use, such as "eth1".
    ``timeout``: seconds that a peer may be silent before the exchange fails.
    ``connect_timeout``: seconds to wait for all ranks to connect.
    ``check_replicas_every``: number of steps after which the ranks compare the bits of their means.

    The ranks connect in the first step, or in :meth:`connect`. All ranks must connect their States
    in the same order.
    """

    def __init__(
        self,
        spec: Spec = "fp32",
        *,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        second_moment: SecondMoment | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
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
            raise BadInput(
                f"warmup_steps and min_size must not be negative; they are {warmup_steps} and "
                f"{min_size}"
            )
        self._settings = {
            "warmup_steps": int(warmup_steps),
            "min_size": int(min_size),
            "seed": int(seed),
            "check_replicas_every": int(check_replicas_every),
        }
        self._network = _Network(link, interface, float(timeout), float(connect_timeout))
        self._momentum_inside_ok = momentum_inside_ok
        if optimizer is not None and self._rules.momentum_inside:
            _refuse_momentum(str(self._rules), optimizer)
            self._momentum_inside_ok = True
        if self._rules.momentum_inside and not self._momentum_inside_ok:
            raise BadSpec(
                f"'{self._rules}' applies momentum itself, so the optimizer must apply none: give "
                "the State optimizer= to check this, or momentum_inside_ok=True if you have "
                "checked it, or use momentum=0 in the spec"
            )
        self._reset(process_group, second_moment)
        if model is not None:
            self.bind(model)

    def _reset(
        self,
        process_group: torch.distributed.ProcessGroup | None = None,
        second_moment: SecondMoment | None = None,
    ) -> None:
        self._names = Names()
        self._process_group = process_group
        self._second_moment = second_moment
        self._groups = Groups(self._rules, self._settings["min_size"])
        self._loaded: dict[str, Any] | None = None  # until the session exists
        self._session: _core.Session | None = None
        self._worker: Worker | None = None
        self._close: Callable[[], Any] | None = None
        self._stats = Stats()
        self._step = 0  # number of steps that have begun
        self._error: BaseException | None = None
        self._plans: dict[tuple[int, ...], list[Visit]] = {}
        self._warm_up: dict[tuple[int, ...], _core.Bucket] = {}
        self._warm_up_buckets = 0
        self._gathering: dict[int, _Gathering] = {}

    # -- connection -------------------------------------------------------------------------------

    def bind(self, model: torch.nn.Module) -> State:
        """Gives the State the names of the model's parameters, as ``model=`` does. Must be called
        before the first step."""
        self._names.bind(model)
        return self

    def connect(self) -> State:
        """Connects to the other ranks of the process group now instead of in the first step."""
        if self._session is not None:
            return self
        if self._rules.need_names and not self._names.bound:
            raise BadSpec(
                f"the rules '{self._rules}' depend on the names of the parameters: give the State "
                "model=, or call bind(model)"
            )
        connection = connect_group(
            self._process_group,
            interface=self._network.interface,
            timeout=self._network.connect_timeout,
            link=self._network.link,
        )
        # A method with momentum needs the gradients of warm-up steps, so the engine warms it up.
        options = _core.SessionOptions(
            spec=next(iter(self._rules.patterns.values())),
            timeout=self._network.timeout,
            min_elements=self._settings["min_size"],
            warmup_steps=self._settings["warmup_steps"] if self._rules.momentum_inside else 0,
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
        """Finishes the buckets in flight and disconnects from the other ranks.

        This happens by itself when the State is garbage-collected or the program ends.
        """
        if self._close is not None:
            self._close()

    @property
    def error(self) -> BaseException | None:
        """The exception of the last exchange that failed. ``backward()`` raises only a RuntimeError
        with its text."""
        return self._error

    # -- the hook's work --------------------------------------------------------------------------

    def reduce(self, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the reduction of a DDP bucket; :func:`hook` calls it."""
        self.connect()
        assert self._worker is not None
        watch.forget()
        if bucket.index() == 0:
            # After a failed step, some of its groups may still be in flight or incomplete.
            self._worker.drain()
            self._gathering.clear()
            self._step += 1
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise BadInput(
                f"DDP bucket {bucket.index()} has sparse gradients ({buffer.layout}), which can't "
                "be reduced; use dense ones, for example Embedding(sparse=False)"
            )
        parameters = bucket.parameters()
        one = _Bucket(buffer)
        # Without momentum a warm-up step leaves no state, so DDP's buckets are reduced as they are.
        if self._step <= self._settings["warmup_steps"] and not self._rules.momentum_inside:
            one.groups_left = 1
            warm_up = self._warm_up_bucket(parameters, buffer.numel())
            self._submit(warm_up, one.host, one)
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

    def _warm_up_bucket(self, parameters: list[torch.Tensor], elements: int) -> _core.Bucket:
        assert self._session is not None
        self._names.note(parameters)
        key = self._key(parameters)
        bucket = self._warm_up.get(key)
        if bucket is None:
            number = WARM_UP_ID + self._warm_up_buckets
            self._warm_up_buckets += 1
            layout = _core.Layout(id=number, elements=elements, tensors=[], spec="fp32")
            bucket = self._warm_up[key] = self._session.add_bucket(layout)
        return bucket

    def _plan(self, parameters: list[torch.Tensor], elements: int) -> list[Visit]:
        key = self._key(parameters)
        plan = self._plans.get(key)
        if plan is None:
            self._names.note(parameters)
            shapes = [(self._names.of(one), memory_shape(one)) for one in parameters]
            if sum(one.numel() for one in parameters) != elements:
                raise BadInput(
                    f"a DDP bucket has {elements} elements and its parameters have "
                    f"{sum(one.numel() for one in parameters)}; torch {torch.__version__} lays out "
                    "buckets in a way that thinreduce does not support"
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
        """Submits the groups that are not complete: parameters that no DDP bucket holds are 0."""
        for gathering in self._gathering.values():
            staging = gathering.group.staging()
            for index in gathering.missing:
                member = gathering.group.members[index]
                staging[member.offset : member.offset + member.elements].zero_()
            self._submit_group(gathering.group, staging, gathering)
        self._gathering.clear()

    def _submit_group(self, group: Group, values: torch.Tensor, target: Any) -> None:
        assert self._session is not None
        moment = None
        if self._second_moment is not None:
            moment = self._second_moment.gather(group.members, group.moments(), self._names)
        self._submit(group.bucket(self._session), values, target, moment)

    def _submit(
        self,
        bucket: _core.Bucket,
        values: torch.Tensor,
        target: Any,
        moment: torch.Tensor | None = None,
    ) -> None:
        assert self._session is not None and self._worker is not None
        pending = self._session.submit(
            bucket, values.data_ptr(), 0 if moment is None else moment.data_ptr()
        )
        stats, step, state = self._stats, self._step, weakref.ref(self)

        def done(report: dict[str, Any] | None, error: BaseException | None) -> None:
            # Keeps `values` and `moment` alive until here, because the engine uses their memory.
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
        """Returns the figures of the last step and, under "total", those of all steps.

        "elements", "payload_bytes" (the compressed gradient of this rank, counted once),
        "bytes_sent", "bytes_received"; "ratio" (bytes of the gradient as float32 divided by
        "payload_bytes"); "statistics" of the method; and "seconds" per stage, summed over buckets:
        "encode", "wire", "decode", "wait" (for the slowest rank), "queued" (until the exchange
        started) and "total".
        """
        return self._stats.as_dict()

    def scalars(self) -> dict[str, dict[str, float]]:
        """Returns the figures of the last step for TensorBoard:
        ``for tag, values in state.scalars().items(): writer.add_scalars(tag, values, step)``."""
        return self._stats.scalars()

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state, including residuals. Each rank must save its own."""
        if self._session is None:
            if self._loaded is not None:
                return dict(self._loaded)
            raise BadState("a State has no state to save before the first step or connect()")
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
        """Continues from the :meth:`state_dict` of the same rank, before or after the first step.

        Raises BadState if it belongs to another rank, number of ranks, spec or settings.
        :func:`thinreduce.redistribute` converts states for another number of ranks.
        """
        if state.get("format") != _FORMAT:
            raise BadState(
                f"the saved state has format {state.get('format')}, and this version of thinreduce "
                f"reads format {_FORMAT}; load it with the version that saved it"
            )
        if state["rules"] != self._rules.patterns:
            raise BadState(
                f"the saved state was written with the spec {state['rules']}, and this State has "
                f"{self._rules.patterns}; use the same spec"
            )
        if state["settings"] != self._settings:
            raise BadState(
                f"the saved state was written with {state['settings']}, and this State has "
                f"{self._settings}; use the same settings"
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
                f"the saved state is of a world of {state['world']} ranks, this one has {world}; "
                "convert the states of all old ranks with thinreduce.redistribute()"
            )
        if state["rank"] != rank:
            raise BadState(
                f"the saved state belongs to rank {state['rank']}, this is rank {rank}; load the "
                "state that this rank saved"
            )
        if state["named"] and not self._names.bound:
            raise BadState(
                "the saved state names its parameters as the model does: give the State model=, or "
                "call bind(model)"
            )

    def __getstate__(self) -> dict[str, Any]:
        has_state = self._session is not None or self._loaded is not None
        return {
            "rules": dict(self._rules.patterns),
            "settings": dict(self._settings),
            "connection": dataclasses.asdict(self._network),
            "momentum_inside_ok": self._momentum_inside_ok,
            "state": self.state_dict() if has_state else None,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._rules = Rules(saved["rules"])
        self._settings = saved["settings"]
        self._network = _Network(**saved["connection"])
        self._momentum_inside_ok = saved["momentum_inside_ok"]
        self._reset()
        if saved["state"] is not None:
            # connect() compares world and rank, after bind() has given the names.
            self._load_later(saved["state"])

    def _load_later(self, state: dict[str, Any]) -> None:
        for group in state["groups"]:
            self._groups.add(group["spec"], group["parameters"])
        self._loaded = dict(state)
        self._step = state["step"]
        self._warm_up_buckets = state["warm_up_buckets"]

    def __repr__(self) -> str:
        return f"thinreduce.State({self._rules})"


def hook(state: State, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduces a bucket of DistributedDataParallel. Register it with the State::

        state = thinreduce.State("dqsg", model=model)
        model.register_comm_hook(state, thinreduce.hook)

    It returns at once; the engine's thread completes the future with the mean over all ranks.
    """
    return state.reduce(bucket)


# DDP compares the annotations with these classes; text would not be equal to them.
hook.__annotations__ = {
    "state": State,
    "bucket": torch.distributed.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}
