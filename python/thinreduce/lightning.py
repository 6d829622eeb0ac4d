"""Compressed gradients for the Trainer of Lightning."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .ddp import State, hook
from .errors import BadInput, Unavailable
from .rules import Spec
from .world import redistribute

_KEY = "thinreduce"  # in Lightning's checkpoints


def callback(spec: Spec = "fp32", **options: Any) -> Any:
    """Returns a callback that compresses the gradients of a Trainer that trains with DDP::

        compression = thinreduce.lightning.callback("dqsg")
        trainer = lightning.Trainer(strategy="ddp", callbacks=[compression])
        trainer.fit(module, data)
        print(compression.state.stats()["total"]["ratio"])

    ``options`` are those of :class:`thinreduce.State`, without ``model``. Lightning's checkpoints
    then contain the residuals of all ranks, also for a run that goes on with another number of
    ranks. The arguments ``ddp_comm_state`` and ``ddp_comm_hook`` of ``DDPStrategy`` do without this
    callback, but Lightning ignores them on the CPU, and saves no residuals.
    """
    base = _callback_class()

    class Compression(base):  # type: ignore[misc, valid-type, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            #: The State, from the beginning of training on; None if there is one process only.
            self.state: State | None = None
            self._saved: list[dict[str, Any]] = []  # by rank, until training begins

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.world_size == 1:
                return
            self.state = _start(trainer.strategy.model, spec, options)
            if self._saved:
                if len(self._saved) != trainer.world_size:
                    self._saved = redistribute(self._saved, trainer.world_size)
                self.state.load_state_dict(self._saved[dist.get_rank()])
                self._saved = []

        def on_save_checkpoint(
            self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]
        ) -> None:
            if self.state is None or not self.state.has_state:
                return
            # Only rank 0 writes.
            states: list[Any] = [None] * trainer.world_size
            dist.gather_object(self.state.state_dict(), states if dist.get_rank() == 0 else None)
            checkpoint[_KEY] = states

        def on_load_checkpoint(
            self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]
        ) -> None:
            self._saved = checkpoint.get(_KEY, [])

    return Compression()


def _callback_class() -> Any:
    """Returns Lightning's Callback, from either of its packages."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise Unavailable("thinreduce.lightning needs Lightning: pip install lightning")


def _start(model: Any, spec: Spec, options: dict[str, Any]) -> State:
    if not isinstance(model, DistributedDataParallel):
        raise BadInput(
            "thinreduce.lightning needs a Trainer with strategy='ddp'; this one trains a "
            f"{type(model).__name__}; for FSDP use thinreduce.fsdp"
        )
    state = State(spec, model=model, **options)
    model.register_comm_hook(state, hook)
    return state
