"""Compressed gradients for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._arguments import shown
from .ddp import State, hook
from .errors import BadInput, Unavailable
from .rules import Spec


class Compression:
    """The compression of a Trainer's gradients, as :func:`attach` returns it."""

    def __init__(self, trainer: Any, spec: Spec, options: dict[str, Any]) -> None:
        self._trainer = trainer
        self._spec = spec
        self._options = options
        #: The State, from the beginning of training on; None if there is one process only.
        self.state: State | None = None
        self._model: Any = None  # that has the hook

    def start(self, model: Any) -> None:
        """Registers the hook with the DDP model, and loads the state of a checkpoint that the
        Trainer has resumed from."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        if not isinstance(model, DistributedDataParallel):
            raise BadInput(
                "thinreduce.huggingface needs a Trainer that uses DistributedDataParallel; this "
                f"one trains a {type(model).__name__}; for FSDP use thinreduce.fsdp"
            )
        if self._model is not model:  # train() may be called again
            self._model = model
            self.state = State(self._spec, model=model, **self._options)
            model.register_comm_hook(self.state, hook)
        step = self._trainer.state.global_step
        if step > 0:
            self._load(self._file(step))

    def save(self) -> None:
        """Adds this rank's state to the checkpoint that the Trainer has just written."""
        if self.state is not None and self.state.has_state:
            file = self._file(self._trainer.state.global_step)
            file.parent.mkdir(parents=True, exist_ok=True)
            # A rank that is killed meanwhile must not leave a part of the file.
            partial = file.with_suffix(".partial")
            torch.save(self.state.state_dict(), partial)
            partial.replace(file)

    def _file(self, step: int) -> Path:
        folder = Path(self._trainer.args.output_dir) / f"checkpoint-{step}"
        return folder / f"thinreduce_rank{dist.get_rank()}.pt"

    def _load(self, file: Path) -> None:
        assert self.state is not None
        # All ranks or none, because they must agree on the number of steps so far.
        found = torch.tensor([float(file.exists())], device=self._trainer.args.device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        if found.item() > 0:
            self.state.load_state_dict(torch.load(file))
        else:
            warnings.warn(
                f"not all ranks have a file such as {file}, so the residuals of '{self._spec}' "
                "start from zero",
                stacklevel=2,
            )


def attach(trainer: Any, spec: Spec = "fp32", **options: Any) -> Compression:
    """Compresses the gradients of a ``transformers.Trainer`` that trains with DDP::

        trainer = Trainer(model, arguments, train_dataset=...)
        compression = thinreduce.huggingface.attach(trainer, "dqsg")
        trainer.train()
        print(compression.state.stats()["total"]["ratio"])

    ``options`` are those of :class:`thinreduce.State`, without ``model``. Checkpoints of the
    Trainer get one more file per rank; a run that resumes from one in its ``output_dir`` loads it.
    """
    if not hasattr(trainer, "add_callback"):
        raise BadInput(f"trainer must be a transformers.Trainer; it is {shown(trainer)}")
    try:
        base: Any = import_module("transformers").TrainerCallback
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise  # one of its own dependencies is missing
        raise Unavailable(
            "thinreduce.huggingface needs transformers: pip install transformers"
        ) from None
    compression = Compression(trainer, spec, options)

    class Callback(base):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            compression.start(trainer.model_wrapped)

        def on_save(self, *_: Any, **__: Any) -> None:
            compression.save()

    trainer.add_callback(Callback())
    return compression
