"""Tensors of a model as float32 values side by side, as the engine exchanges them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from .groups import memory_order, memory_shape

# Formats whose values are coarser than float32.
_NARROW = (torch.bfloat16, torch.float16)


class FlatTensors:
    """Reads and writes some tensors of a model.

    A bfloat16 or float16 tensor can't hold the float32 value that is written to it. The rest is
    kept aside and added when the tensor is read, so that values that differ by less than a step of
    the format are not lost over many rounds.
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._named = named
        self._rest: dict[int, torch.Tensor] = {
            index: torch.zeros(tensor.numel())
            for index, (_, tensor) in enumerate(named)
            if tensor.dtype in _NARROW
        }

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the names and shapes, with axes in memory order."""
        return [(name, memory_shape(tensor)) for name, tensor in self._named]

    def elements(self, members: Iterable[int]) -> int:
        return sum(self._named[index][1].numel() for index in members)

    def read(self, members: Sequence[int]) -> torch.Tensor:
        """Returns a float32 copy of the tensors with these numbers."""
        flat = torch.empty(self.elements(members), dtype=torch.float32)
        for index, part in self._parts(members, flat):
            part.copy_(_in_memory_order(self._named[index][1]).reshape(-1))
            if index in self._rest:
                part.add_(self._rest[index])
        return flat

    def write(self, members: Sequence[int], flat: torch.Tensor) -> None:
        """Replaces the tensors with these numbers."""
        for index, part in self._parts(members, flat):
            stored = _in_memory_order(self._named[index][1])
            stored.copy_(part.view(stored.shape))
            if index in self._rest:
                self._rest[index] = part - stored.reshape(-1).to("cpu", torch.float32)

    def digest(self) -> str:
        """Returns a hash of all values."""
        bits = hashlib.blake2b(digest_size=16)
        for index in range(len(self._named)):
            bits.update(self.read([index]).numpy().tobytes())
        return bits.hexdigest()

    def rest(self) -> dict[str, torch.Tensor]:
        """Returns the parts of the values that narrow formats can't hold, by name."""
        return {self._named[index][0]: rest.clone() for index, rest in self._rest.items()}

    def set_rest(self, rest: dict[str, torch.Tensor]) -> None:
        for index in self._rest:
            self._rest[index] = rest[self._named[index][0]].clone()

    def _parts(
        self, members: Sequence[int], flat: torch.Tensor
    ) -> Iterable[tuple[int, torch.Tensor]]:
        offset = 0
        for index in members:
            elements = self._named[index][1].numel()
            yield index, flat[offset : offset + elements]
            offset += elements


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    ordered: torch.Tensor = tensor.detach().permute(memory_order(tensor))
    return ordered
