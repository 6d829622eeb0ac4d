"""Local steps: ranks train by themselves and exchange differences every few steps."""

from __future__ import annotations

import contextlib
import hashlib
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from . import _core
from ._arguments import (
    SessionArguments,
    check_saved_state,
    check_text,
    check_type,
    spec_text,
    whole_number,
)
from ._flat_tensors import FlatTensors
from ._local_rounds import LocalRounds
from ._rendezvous import GroupArguments, check_group, members_of
from ._state_options import check_world
from .errors import BadInput, BadSpec, BadState, describe
from .stats import Stats

FORMAT = 1  # of LocalSteps.state_dict()
_KEYS = ("format", "rank", "world", "settings", "rounds", "rest", "engine", "parameters")


class LocalSteps:
    """Keeps the parameters of all ranks together with an exchange every ``every`` steps::

        sync = thinreduce.LocalSteps(model, "topk:density=0.0156,values=2bit", every=30)
        for batch in batches:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            sync.step()
        sync.synchronize()

    ``model`` is a plain module, without DistributedDataParallel; any optimizer serves. All ranks
    start with the parameters and buffers of rank 0, which the constructor sends to them.

    ``spec``: the method, with options, that reduces the differences.
    ``every``: local steps per round.
    ``outer``: the step that applies the mean of the differences to the shared parameters:
    "nesterov,lr=0.7,momentum=0.9" or "sgd,lr=1", also with momentum.
    ``fragments``: number of parts of the model that are exchanged in turn, every / fragments steps
    apart.
    ``overlap``: local steps that are done while an exchange is under way; with 0, ``step()`` waits.
    ``buffers``: "average": buffers of floats, such as those of batch norm, become their mean over
    the ranks in every round. "leave": each rank keeps its own.
    ``warmup_rounds``: number of rounds at the start that are sent uncompressed.
    ``check_replicas_every``: rounds after which the ranks compare the bits of their means.
    The other arguments are those of :class:`State`.

    All ranks must give the same arguments, ``interface``, ``threads`` and the timeouts excepted.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        spec: str = "fp32",
        *,
        every: int = 30,
        outer: str = "nesterov,lr=0.7,momentum=0.9",
        fragments: int = 1,
        overlap: int = 0,
        buffers: Literal["average", "leave"] = "average",
        process_group: dist.ProcessGroup | None = None,
        warmup_rounds: int = 0,
        min_size: int = 1024,
        seed: int = 0,
        link: str = "",
        transport: Literal["auto", "gloo", "torch"] = "auto",
        interface: str = "",
        secret: str | None = None,
        timeout: float = 60.0,
        patience: float = 1800.0,
        connect_timeout: float = 60.0,
        check_replicas_every: int = 10,
        threads: int = 1,
    ) -> None:
        check_type("model", model, torch.nn.Module, "a torch.nn.Module")
        check_group(process_group)
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise BadInput(
                "LocalSteps needs the plain module: DistributedDataParallel exchanges gradients in "
                "every step; give it model.module, and train that"
            )
        if buffers not in ("average", "leave"):
            raise BadInput(f"buffers must be 'average' or 'leave'; it is {buffers!r}")
        session_arguments = SessionArguments(
            timeout=timeout,
            patience=patience,
            min_size=min_size,
            seed=seed,
            check_replicas_every=check_replicas_every,
            threads=threads,
        )
        group_arguments = GroupArguments(
            link=link,
            transport=transport,
            interface=interface,
            connect_timeout=connect_timeout,
            secret=secret,
        )
        options = _core.LocalStepsOptions(
            every=whole_number("every", every, min=1),
            outer=check_text("outer", outer),
            fragments=whole_number("fragments", fragments, min=1),
            overlap=whole_number("overlap", overlap),
        )
        full = spec_text(spec)
        _check_momentum(spec, options)
        self._model = model
        self._trained = [one.requires_grad for one in model.parameters()]
        trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        self._check(trained)
        self._settings = (
            f"{full} {options.settings()} LocalSteps.buffers={buffers} "
            f"LocalSteps.model={_model_hash(model)}"
        )
        session_options = session_arguments.options(
            spec=spec,
            warmup_steps=whole_number("warmup_rounds", warmup_rounds),
            # Momentum inside the method takes the place of momentum in the outer step.
            momentum_inside_ok=not options.momentum(),
            caller_settings=self._settings,
        )
        self._session = _core.Session(group_arguments.connect(process_group), session_options)
        self._close = weakref.finalize(self, _core.Session.close, self._session)
        _broadcast(model, process_group)
        self._parameters = LocalRounds(
            self._session, options, FlatTensors(trained), keep_progress=True
        )
        self._rounds = [self._parameters]
        averaged = _averaged_buffers(model) if buffers == "average" else []
        if averaged:
            plain = _core.LocalStepsOptions(
                every=every,
                outer="sgd,lr=1",
                overlap=overlap,
                first_id=fragments,
                spec="fp32",
                kind="buffer",
            )
            self._rounds.append(
                LocalRounds(self._session, plain, FlatTensors(averaged), keep_progress=False)
            )
        self._stats = Stats()
        self._exchanges = 0
        self._waited = 0.0

    @staticmethod
    def _check(trained: Sequence[tuple[str, torch.Tensor]]) -> None:
        if not trained:
            raise BadInput("the model has no parameters with requires_grad")
        for name, parameter in trained:
            if not parameter.is_floating_point() or parameter.layout != torch.strided:
                raise BadInput(
                    f"parameter '{name}' is {parameter.dtype}, {parameter.layout}; parameters must "
                    "be dense floating-point tensors"
                )

    # -- training ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Counts a local step, and starts and applies the exchanges that are due after it. Call it
        after every ``optimizer.step()``, on all ranks.

        Raises the exceptions of this package. After :class:`NonFinite` (a parameter is NaN or Inf
        on some rank) nothing was changed and training may go on.
        """
        due = [rounds.engine.advance() for rounds in self._rounds]
        if any(start for start, _ in due):
            with self._ending_the_session():
                self._check_trained()
                for rounds, (start, _) in zip(self._rounds, due):
                    rounds.start(start)
        self._apply([(rounds, apply) for rounds, (_, apply) in zip(self._rounds, due)])

    def synchronize(self) -> None:
        """Applies the exchanges under way and exchanges at once all fragments that had local steps
        since their last exchange, so that all ranks hold the same parameters: at the end of
        training. On all ranks."""
        with self._ending_the_session():
            self._check_trained()
        changed = [(rounds, rounds.changed()) for rounds in self._rounds]
        self._apply([(rounds, rounds.under_way()) for rounds in self._rounds])
        with self._ending_the_session():
            for rounds, fragments in changed:
                rounds.start(fragments)
        self._apply(changed)

    @contextlib.contextmanager
    def _ending_the_session(self) -> Iterator[None]:
        """Ends the session after an exception, because the other ranks start exchanges that this
        one does not."""
        try:
            yield
        except BaseException as error:
            self._session.abandon(describe(error))
            raise

    def _apply(self, due: list[tuple[LocalRounds, list[int]]]) -> None:
        """Applies exchanges. All of them must end, also after one that failed."""
        if not any(fragments for _, fragments in due):
            return
        error: BaseException | None = None
        self._exchanges += 1
        started = time.monotonic()
        for rounds, fragments in due:
            for fragment in fragments:
                try:
                    self._stats.add(self._exchanges, rounds.apply(fragment))
                except BaseException as caught:  # the first one is raised below
                    error = error or caught
        self._waited += time.monotonic() - started
        if error is not None:
            raise error

    def _check_trained(self) -> None:
        trained = [one.requires_grad for one in self._model.parameters()]
        if trained != self._trained:
            raise BadInput(
                "parameters were frozen, unfrozen or added since LocalSteps was made; call "
                "synchronize() before that, and make a new LocalSteps after it"
            )

    @contextlib.contextmanager
    def shared_parameters(self) -> Iterator[None]:
        """Within this context the model has the parameters that all ranks share, those after the
        last outer step; afterwards its own again. For evaluation in the middle of a round."""
        rounds = self._parameters
        own = [one.detach().clone() for one in self._model.parameters()]
        rest = rounds.tensors.rest()
        rounds.write_anchor()
        try:
            yield
        finally:
            for parameter, value in zip(self._model.parameters(), own):
                parameter.detach().copy_(value)
            rounds.tensors.set_rest(rest)

    # -- state ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Returns the figures of the last exchange and, under "total", of all, as
        :meth:`State.stats` does; and "local_steps", "exchanges", "bits_per_parameter" (the payload
        of this rank, of the last exchange) and "wait_seconds", which ``step()`` has waited."""
        figures = self._stats.as_dict()
        elements = figures["elements"]
        return {
            **figures,
            "local_steps": self._parameters.engine.step,
            "exchanges": self._exchanges,
            "bits_per_parameter": 8 * figures["payload_bytes"] / elements if elements else 0.0,
            "wait_seconds": self._waited,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state: shared parameters, outer momentum, residuals and exchanges
        under way, for which it waits. Between two outer steps the ranks differ, so each must save
        its own state, model and optimizer."""
        return {
            "format": FORMAT,
            "rank": self._session.rank,
            "world": self._session.world,
            "settings": self._settings,
            "rounds": [rounds.engine.save() for rounds in self._rounds],
            "rest": [rounds.tensors.rest() for rounds in self._rounds],
            "engine": self._session.save(),
            "parameters": self._parameters.tensors.digest(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the :meth:`state_dict` of the same rank. The model must have loaded the
        parameters that this rank saved with it, after this LocalSteps was made.

        Raises BadState if the state belongs to another rank, number of ranks, model or settings.
        """
        check_saved_state(state, "LocalSteps", FORMAT, _KEYS)
        check_world(state, self._session.rank, self._session.world)
        if state["settings"] != self._settings:
            raise BadState(
                f"the saved state was written with '{state['settings']}', and this LocalSteps has "
                f"'{self._settings}'; use the same model and settings"
            )
        before = [rounds.tensors.rest() for rounds in self._rounds]
        for rounds, rest in zip(self._rounds, state["rest"]):
            rounds.tensors.set_rest(rest)
        if self._parameters.tensors.digest() != state["parameters"]:
            for rounds, rest in zip(self._rounds, before):
                rounds.tensors.set_rest(rest)
            raise BadState(
                "the model's parameters are not those with which the state was saved: make "
                "LocalSteps first, then load the model's state_dict of this rank, then this state"
            )
        self._session.load(state["engine"])
        for rounds, saved in zip(self._rounds, state["rounds"]):
            rounds.engine.load(saved)

    def close(self) -> None:
        """Disconnects from the other ranks. Happens by itself at the end of the program."""
        self._close()


def _check_momentum(spec: str, options: _core.LocalStepsOptions) -> None:
    """Raises BadSpec for a method that returns signs, or that has momentum beside that of the
    outer step."""
    if not _core.momentum_inside(spec):
        return
    does = "applies momentum itself"
    if _core.hands_out_signs(spec):
        does += " and returns the signs of the mean, not a change of the parameters"
    elif not options.momentum():  # that of the method takes its place
        return
    method = spec.partition(":")[0]
    raise BadSpec(
        f"'{spec}' {does}; with LocalSteps use {method}:{_core.without_momentum(spec)} and the "
        "momentum of outer"
    )


def _model_hash(model: torch.nn.Module) -> str:
    """Returns a word that is the same for models with the same tensors."""
    bits = hashlib.blake2b(digest_size=6)
    for name, one in [*model.named_parameters(), *model.named_buffers()]:
        text = f"{name} {one.dtype} {tuple(one.shape)} {one.requires_grad};"
        bits.update(text.encode())
    elements = sum(one.numel() for one in model.parameters())
    return f"{elements}-parameters-{bits.hexdigest()}"


def _broadcast(model: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Gives all ranks the parameters and buffers of rank 0, bit by bit."""
    source = members_of(group)[0]
    for tensor in [*model.parameters(), *model.buffers()]:
        # As bytes: not every backend knows every format.
        one = tensor.detach().contiguous()
        flat = one.view(-1) if one.dim() else one.reshape(1)
        dist.broadcast(flat.view(torch.uint8), source, group=group)
        tensor.detach().copy_(one)


def _averaged_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns the buffers of floats. Those with NaN or Inf, such as a mask of -inf, are constants.
    All ranks hold the same bits here."""
    return [
        (name, one)
        for name, one in model.named_buffers()
        if one.is_floating_point() and bool(torch.isfinite(one).all())
    ]
