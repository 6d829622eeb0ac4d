"""The DDP communication hook and its state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch

from ._arguments import shown
from ._buckets import GradientBucket
from ._connected import ConnectedState, Reconfiguration
from ._state_options import FORMAT, StateOptions
from .errors import BadInput, BadState
from .rules import Spec
from .stats import Stats

if TYPE_CHECKING:
    from .second_moment import SecondMoment

__all__ = ["Reconfiguration", "State", "hook"]


class State(ConnectedState):
    """The state of :func:`hook`. Each DDP model needs its own; see there for an example.

    ``spec``: a method with options, such as "gradiveq" or "dqsg:levels=7"; or rules by parameter
    name, such as ``{"fc.*": "powersgd:basis=2", "*": "dqsg"}``, of which the first that matches
    decides. Tensors that are 1-D or have fewer than ``min_size`` elements are sent uncompressed.
    ``model``: the DDP model, for the names of its parameters and its process group. Rules need it,
    and so does resuming with other DDP settings.
    ``optimizer``: for methods that apply momentum themselves ("sketch:momentum=0.9"): checks that
    the optimizer applies none. ``momentum_inside_ok=True`` says that the caller has checked it.
    ``second_moment``: a :class:`SecondMoment` of the model; the variance method uses it.
    ``process_group``: the process group that DDP uses; default that of ``model``. DDP does not tell
    its hook, so without both the State takes the default group, and refuses to connect on a rank
    that is also in a group of some ranks only.
    ``nonfinite``: the reaction to a gradient that is NaN or Inf on some rank. "skip": all ranks get
    NaN, as with plain DDP, so that a GradScaler skips the step on all of them. "raise":
    ``backward()`` raises on all ranks. Either way the residuals are as before the step.
    ``warmup_steps``: number of steps at the start that are sent uncompressed.
    ``seed``: seed of the methods' random numbers; it must be the same on all ranks.
    ``link``: a slow network to emulate, such as "1gbit,2ms" (bandwidth, latency).
    ``transport``: "gloo" (connections of thinreduce's own, which are not encrypted) or "torch" (a
    process group of PyTorch beside the model's, so that encryption, interface and firewall are
    those of PyTorch). "auto": "gloo", or "torch" if this package was built without Gloo or
    GLOO_DEVICE_TRANSPORT asks PyTorch to encrypt.
    ``interface``: the network interface to use, such as "eth1".
    ``secret``: a text of at least 16 bytes that all ranks must share; ranks without it are refused,
    and messages that were altered on the way are errors. None: that of THINREDUCE_SECRET or of the
    file THINREDUCE_SECRET_FILE; "": none. It is not saved and not pickled.
    ``timeout``: seconds that a peer may be silent before the exchange fails. A peer that computes
    is not silent. The transport "torch" can't tell the two apart and ignores it.
    ``patience``: seconds to wait for a peer that is alive but does not take part; 0: forever.
    ``connect_timeout``: seconds to wait for all ranks to connect.
    ``check_replicas_every``: number of steps after which the ranks compare the bits of their means.
    ``threads``: threads of this rank that share the work on a large bucket; the means have the same
    bits for any number.
    ``guard``: the reaction to a rank whose gradient has more than ``guard_factor`` times the median
    norm of all ranks, in one bucket and step. "report": ``stats()["outliers"]`` names the
    rank; "clip": the gradient is also scaled down to that norm; "refuse": ``backward()`` raises
    :class:`BadInput` on all ranks; "off": norms are not compared.

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
        nonfinite: Literal["skip", "raise"] = "skip",
        warmup_steps: int = 1,
        min_size: int = 1024,
        seed: int = 0,
        link: str = "",
        transport: Literal["auto", "gloo", "torch"] = "auto",
        interface: str = "",
        secret: str | None = None,
        timeout: float = 60.0,
        patience: float = 1800.0,
        connect_timeout: float = 60.0,
        check_replicas_every: int = 100,
        threads: int = 1,
        guard: Literal["off", "report", "clip", "refuse"] = "off",
        guard_factor: float = 10.0,
        momentum_inside_ok: bool = False,
    ) -> None:
        given = {
            "nonfinite": nonfinite,
            "warmup_steps": warmup_steps,
            "min_size": min_size,
            "seed": seed,
            "link": link,
            "transport": transport,
            "interface": interface,
            "secret": secret,
            "timeout": timeout,
            "patience": patience,
            "connect_timeout": connect_timeout,
            "check_replicas_every": check_replicas_every,
            "threads": threads,
            "guard": guard,
            "guard_factor": guard_factor,
            "momentum_inside_ok": momentum_inside_ok,
        }
        if second_moment is not None and not hasattr(second_moment, "gather"):
            raise BadInput(
                f"second_moment must be a thinreduce.SecondMoment; it is {shown(second_moment)}"
            )
        self._options = StateOptions(spec, given, optimizer)
        self._gathers = True  # whether a group may lie in several buckets
        self._reset(process_group, second_moment)
        if model is not None:
            self.bind(model)

    # -- the hook's work --------------------------------------------------------------------------

    def reduce(self, bucket: GradientBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the reduction of a DDP bucket; :func:`hook` calls it."""
        try:
            return self._connected().reduce(bucket)
        except BaseException as error:
            self._outcome.note(error)
            raise

    @contextlib.contextmanager
    def _ending_the_session(self) -> Iterator[None]:
        """Ends the session after an exception in the body, which the other ranks do not have: they
        submit buckets that this one never will."""
        try:
            yield
        except BaseException as error:
            if self._reduction is not None:
                self._reduction.give_up(error)
            raise

    @property
    def error(self) -> BaseException | None:
        """The exception of the last exchange that failed. ``backward()`` raises only a RuntimeError
        with its text; :meth:`errors` raises the exception itself."""
        return self._outcome.error

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raises the exceptions of the exchange instead of torch's RuntimeError.

        For example::

            try:
                with state.errors():
                    loss.backward()
            except thinreduce.LostPeer as error:
                ...
        """
        self._outcome.error = None
        try:
            yield
        except Exception as raised:
            error = self._outcome.error
            if error is None or error is raised or str(error) not in str(raised):
                raise
            raise error from raised

    @property
    def skipped(self) -> int:
        """Number of steps so far in which a gradient was NaN or Inf on some rank, so that all ranks
        got NaN. Always 0 with ``nonfinite="raise"``."""
        return self._outcome.skipped

    # -- state ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Returns the figures of the last step and, under "total", those of all steps.

        "elements", "payload_bytes" (the compressed gradient of this rank, counted once),
        "bytes_sent", "bytes_received"; "ratio" (bytes of the gradient as float32 divided by
        "payload_bytes"); "statistics" of the method; "outliers", which a guard has found: the norm
        of a rank's gradient over the median, by rank; and "seconds" per stage, summed over buckets:
        "encode", "wire", "decode", "wait" (for the slowest rank), "queued" (until the exchange
        started) and "total".
        """
        return self._stats().as_dict()

    def scalars(self) -> dict[str, dict[str, float]]:
        """Returns the figures of the last step for TensorBoard:
        ``for tag, values in state.scalars().items(): writer.add_scalars(tag, values, step)``."""
        return self._stats().scalars()

    def plan(self) -> dict[str, Any] | None:
        """Returns which method each bucket has with the spec "auto", and why; None with another
        spec and before the first step.

        "reason" is a sentence; "local_steps" is how many local steps it recommends, 1 for none;
        "planning_seconds" is the time that probes, trials and decisions took on this rank.
        "buckets" lists per bucket the "spec" that was chosen, its "reason" and, under "candidates",
        the predictions for each method that was "tried": "encode_seconds", "wire_seconds",
        "decode_seconds", "seconds" in all, "exposed_seconds" of the step, "bytes_sent" and "error",
        the squared error of the mean relative to its sum of squares. docs/planner.md explains them.
        """
        return None if self._reduction is None else self._reduction.session.plan()

    def _stats(self) -> Stats:
        return Stats() if self._reduction is None else self._reduction.stats

    @property
    def has_state(self) -> bool:
        """Whether there is a state to save: after the first step, connect() or
        load_state_dict()."""
        return self._reduction is not None or self._loaded is not None

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state, including residuals. Each rank must save its own."""
        if self._reduction is None:
            if self._loaded is not None:
                return dict(self._loaded)
            raise BadState("a State has no state to save before the first step or connect()")
        self._reduction.settle()
        session = self._reduction.session
        return {
            "format": FORMAT,
            "rank": session.rank,
            "world": session.world,
            "rules": dict(self._options.rules.patterns),
            "settings": dict(self._options.settings),
            **self._progress.as_dict(),
            "named": self._names.bound,
            "engine": session.save(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the :meth:`state_dict` of the same rank, before or after the first step.

        Raises BadState if it belongs to another rank, number of ranks, spec or settings.
        :func:`thinreduce.redistribute` converts states for another number of ranks.
        """
        self._options.check_saved(state)
        progress = self._progress_of(state)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._check_world(state)
        if self._reduction is not None:
            self._reduction.settle()
            self._reduction.session.load(state["engine"])
            self._reduction.restart(progress)
        else:
            self._loaded = dict(state)
        self._progress = progress

    def __getstate__(self) -> dict[str, Any]:
        return {
            "options": self._options.as_dict(),
            "state": self.state_dict() if self.has_state else None,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._options = StateOptions.from_dict(saved["options"])
        self._gathers = True
        self._reset()
        if saved["state"] is not None:
            # connect() compares world and rank, after bind() has given the names.
            self._progress = self._progress_of(saved["state"])
            self._loaded = dict(saved["state"])

    def __repr__(self) -> str:
        return f"thinreduce.State({self._options.rules})"


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
