"""Names of parameters: the model's, or, when it is not known, numbers in order of appearance."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .errors import BadInput


class Names:
    """Parameters by identity; they are kept alive, so that no other can take an identity over."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[torch.Tensor, str]] = {}
        self.by_name: dict[str, torch.Tensor] = {}
        self.bound = False

    def bind(self, model: torch.nn.Module) -> None:
        if self._names and not self.bound:
            raise BadInput("the model must be given before the first step")
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        for name, parameter in model.named_parameters():
            self._put(parameter, name)
        self.bound = True

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gives numbers to those that have no name yet."""
        for parameter in parameters:
            if id(parameter) in self._names:
                continue
            if self.bound:
                raise BadInput(
                    f"DDP reduces a parameter of shape {tuple(parameter.shape)} that is not in the "
                    "model which the State was given"
                )
            self._put(parameter, f"#{len(self._names)}")

    def of(self, parameter: torch.Tensor) -> str:
        return self._names[id(parameter)][1]

    def _put(self, parameter: torch.Tensor, name: str) -> None:
        self._names[id(parameter)] = (parameter, name)
        self.by_name[name] = parameter
