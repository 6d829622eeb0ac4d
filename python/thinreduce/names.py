"""Names of parameters.

They are those of the model if the State knows it, else numbers in the order in which DDP first
passes the parameters to the hook.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .errors import BadInput


class Names:
    """Maps parameters to names by id(), and keeps them alive so that no id() is reused."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[torch.Tensor, str]] = {}
        self.by_name: dict[str, torch.Tensor] = {}
        self.bound = False

    def bind(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Takes the names of a model's parameters; must be called before the first step."""
        if self._names and not self.bound:
            raise BadInput(
                f"the State has already numbered {len(self._names)} parameters in a step without a "
                "model; give it model=, or call bind(), before the first step"
            )
        for name, parameter in named:
            self._put(parameter, name)
        self.bound = True

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Numbers the parameters that have no name yet; raises BadInput if the model is known."""
        for parameter in parameters:
            if id(parameter) in self._names:
                continue
            if self.bound:
                raise BadInput(
                    f"DDP reduces a parameter of shape {tuple(parameter.shape)} that is not in the "
                    "State's model; give the State the model that DDP wraps"
                )
            self._put(parameter, f"#{len(self._names)}")

    def of(self, parameter: torch.Tensor) -> str:
        """Returns the name of a parameter."""
        return self._names[id(parameter)][1]

    def _put(self, parameter: torch.Tensor, name: str) -> None:
        self._names[id(parameter)] = (parameter, name)
        self.by_name[name] = parameter
