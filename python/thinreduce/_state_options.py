"""The arguments of a State that are numbers and words: checked, compared between ranks, saved."""

from __future__ import annotations

from typing import Any

import torch

from . import _core
from ._arguments import SessionArguments, check_saved_state, shown, whole_number
from ._rendezvous import GroupArguments
from .errors import BadInput, BadSpec, BadState
from .groups import Groups
from .rules import Rules, Spec
from .world import STATE_KEYS

FORMAT = 1  # of State.state_dict()

_NUMBERS = ("warmup_steps", "min_size", "seed", "check_replicas_every")


def _check_optimizer(rules: Rules, optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer that applies momentum again after methods that apply it themselves."""
    name = type(optimizer).__name__
    if rules.hands_out_signs and not isinstance(optimizer, torch.optim.SGD):
        raise BadSpec(
            f"'{rules}' returns the signs of the mean, for torch.optim.SGD without momentum, and "
            f"the optimizer is {name}: use SGD, or {rules.without_momentum} in the spec"
        )
    for number, options in enumerate(optimizer.param_groups):
        momentum = options.get("momentum", 0)
        beta = (options.get("betas") or (0,))[0]
        if momentum or beta:
            own = f"{momentum:g}" if momentum else f"betas[0] = {beta:g}"
            advice = "set the optimizer's momentum to 0" if momentum else "use SGD with momentum=0"
            raise BadSpec(
                f"'{rules}' applies momentum itself, and {name} would apply its own ({own} in "
                f"parameter group {number}) again: {advice}, or use {rules.without_momentum} in "
                "the spec"
            )
        # Signs leave the weight decay to the optimizer.
        if options.get("weight_decay", 0) and not rules.hands_out_signs:
            raise BadSpec(
                f"'{rules}' applies momentum itself, so the weight decay of {name} "
                f"({options['weight_decay']:g} in parameter group {number}) would be added after "
                "momentum and lack its factor 1 / (1 - momentum): set the optimizer's weight_decay "
                f"to 0 and add weight decay to the loss, or use {rules.without_momentum} in the "
                "spec"
            )


class StateOptions:
    """Checked arguments. ``given`` has all of them but the spec, as :class:`State` names them."""

    def __init__(
        self, spec: Spec, given: dict[str, Any], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self.rules = Rules(spec)
        # Those that a saved state must have been written with.
        self.settings = {name: whole_number(name, given[name]) for name in _NUMBERS}
        self._session = SessionArguments(
            timeout=given["timeout"],
            patience=given["patience"],
            min_size=given["min_size"],
            seed=given["seed"],
            check_replicas_every=given["check_replicas_every"],
            threads=given.get("threads", 1),
            guard=given.get("guard", "off"),
            guard_factor=given.get("guard_factor", 10.0),
        )
        self._group = GroupArguments(
            link=given["link"],
            transport=given.get("transport", "auto"),
            interface=given["interface"],
            connect_timeout=given["connect_timeout"],
            secret=given.pop("secret", None),  # not part of what is pickled
        )
        self.nonfinite: str = given["nonfinite"]
        if self.nonfinite not in ("skip", "raise"):
            raise BadInput(f"nonfinite must be 'skip' or 'raise'; it is {self.nonfinite!r}")
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise BadInput(f"optimizer must be a torch.optim.Optimizer; it is {shown(optimizer)}")
        if optimizer is not None and self.rules.momentum_inside:
            _check_optimizer(self.rules, optimizer)
            given["momentum_inside_ok"] = True
        self.momentum_inside_ok: bool = given["momentum_inside_ok"]
        if self.rules.momentum_inside and not self.momentum_inside_ok:
            raise BadSpec(
                f"'{self.rules}' applies momentum itself, so the optimizer must apply none: give "
                "the State optimizer= to check this, or momentum_inside_ok=True if you have "
                f"checked it, or use {self.rules.without_momentum} in the spec"
            )
        self._given = given

    def as_dict(self) -> dict[str, Any]:
        """Returns the argument of :meth:`from_dict`, to pickle it."""
        return {"spec": dict(self.rules.patterns), "given": dict(self._given)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> StateOptions:
        return cls(saved["spec"], saved["given"])

    @property
    def uncompressed_steps(self) -> int:
        """Number of steps in which DDP's buckets are reduced as they are.

        A method with momentum needs the gradients of warm-up steps, so the engine warms it up. Any
        other has no state yet.
        """
        return 0 if self.rules.momentum_inside else self.settings["warmup_steps"]

    def new_groups(self) -> Groups:
        """Returns groups without any parameters yet."""
        return Groups(self.rules, self.settings["min_size"])

    def connect(
        self, group: torch.distributed.ProcessGroup | None, *, new_world: bool = False
    ) -> _core.Connection:
        """Connects this rank to all others of a process group; None is the default group.

        ``new_world``: some of them may have connected other groups before, and others not."""
        return self._group.connect(group, new_world=new_world)

    def for_session(self) -> _core.SessionOptions:
        """Returns the options of the engine's session."""
        rules = ";".join(f"{pattern}={spec}" for pattern, spec in self.rules.patterns.items())
        warmup_steps = self.settings["warmup_steps"]
        return self._session.options(
            spec=next(iter(self.rules.patterns.values())),
            warmup_steps=warmup_steps - self.uncompressed_steps,
            momentum_inside_ok=self.momentum_inside_ok,
            caller_settings=f"State.warmup_steps={warmup_steps} State.nonfinite={self.nonfinite} "
            f"State.rules={rules}",
        )

    def check_saved(self, state: dict[str, Any]) -> None:
        """Raises BadState unless a saved state was written with these options."""
        check_saved_state(state, "State", FORMAT, STATE_KEYS)
        if state["rules"] != self.rules.patterns:
            raise BadState(
                f"the saved state was written with the spec {state['rules']}, and this State has "
                f"{self.rules.patterns}; use the same spec"
            )
        if state["settings"] != self.settings:
            raise BadState(
                f"the saved state was written with {state['settings']}, and this State has "
                f"{self.settings}; use the same settings"
            )


def check_world(state: dict[str, Any], rank: int, world: int) -> None:
    """Raises BadState unless a saved state belongs to this rank of a world of this size."""
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
