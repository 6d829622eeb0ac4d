"""Computes second moments of per-sample gradients, for the variance method.

The second moment of an element is the sum over the local batch B of its squared gradients of single
samples: sum_z (grad f_z / |B|)^2, for a loss that is the mean of f_z over the batch. It is computed
from tensors that backward has anyway: the input of a layer and the gradient of its output.

In this file ``a`` is the input of a layer and ``d`` the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.hooks import RemovableHandle

from .errors import BadInput
from .groups import Member
from .names import Names


def _sum_of_squares(samples: torch.Tensor) -> torch.Tensor:
    """Returns the sum over the samples, which are the first axis."""
    return torch.sum(samples.square(), 0)


def _linear(module: torch.nn.Linear, a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    if a.dim() == 2:
        return torch.mm(d.square().t(), a.square())
    # A sample uses the weight at several positions; its gradient is the sum over them.
    a = a.reshape(a.shape[0], -1, a.shape[-1])
    d = d.reshape(d.shape[0], -1, d.shape[-1])
    return _sum_of_squares(torch.bmm(d.transpose(1, 2), a))


def _conv2d_samples(
    module: Any,
    a: torch.Tensor,
    d: torch.Tensor,
    *,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> torch.Tensor:
    batch, groups = a.shape[0], module.groups
    columns = F.unfold(a, kernel, dilation=dilation, padding=padding, stride=stride)
    columns = columns.reshape(batch, groups, -1, columns.shape[-1])
    d = d.reshape(batch, groups, d.shape[1] // groups, -1)
    # Border elements that the stride skips are in neither factor.
    return _sum_of_squares(torch.matmul(d, columns.transpose(2, 3)))


def _padded(module: Any, a: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Applies the padding that unfold does not support; returns the input and the other padding."""
    if module.padding_mode != "zeros":
        return F.pad(a, module._reversed_padding_repeated_twice, mode=module.padding_mode), (
            0,
        ) * len(module.kernel_size)
    if isinstance(module.padding, str):
        return F.pad(a, module._reversed_padding_repeated_twice), (0,) * len(module.kernel_size)
    return a, tuple(module.padding)


def _conv(module: Any, a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    a, padding = _padded(module, a)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if len(kernel) == 1:  # treated as an image of height 1
        a, d = a.unsqueeze(2), d.unsqueeze(2)
        kernel, stride = (1, *kernel), (1, *stride)
        padding, dilation = (0, *padding), (1, *dilation)
    moment = _conv2d_samples(
        module, a, d, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    return torch.reshape(moment, module.weight.shape)


_WEIGHTS: dict[type, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    torch.nn.Linear: _linear,
    torch.nn.Conv1d: _conv,
    torch.nn.Conv2d: _conv,
}


def _bias(module: Any, d: torch.Tensor) -> torch.Tensor:
    if isinstance(module, torch.nn.Linear):
        return _sum_of_squares(d.reshape(d.shape[0], -1, d.shape[-1]).sum(1))
    return _sum_of_squares(d.reshape(d.shape[0], d.shape[1], -1).sum(2))


class SecondMoment:
    """Computes second moments of per-sample gradients; pass it to ``State(second_moment=)``.

    The second moment of an element is the sum over the local batch of its squared gradients of
    single samples, for a loss that is a mean over the batch. It is computed during backward for
    Linear, Conv1d and Conv2d layers. 1-D parameters of other layers need none, because they are
    sent uncompressed; a model with any other parameter raises BadInput.

    Second moments add up over the backward passes of a step, as gradients do under ``no_sync``. If
    a layer is used several times in one forward pass, each use counts as a separate sample.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._moments: dict[int, torch.Tensor] = {}
        self._used: set[int] = set()
        self._handles: list[RemovableHandle] = []
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        for name, module in model.named_modules():
            if type(module) in _WEIGHTS:
                self._handles.append(module.register_forward_hook(self._after_forward))
                continue
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    raise BadInput(
                        f"SecondMoment can't compute the second moment of '{name}.{own}' of "
                        f"{type(module).__name__}; it supports "
                        + ", ".join(kind.__name__ for kind in _WEIGHTS)
                    )

    def close(self) -> None:
        """Removes its hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Returns the second moment of a parameter in this step, or None if it has none."""
        return None if id(parameter) in self._used else self._moments.get(id(parameter))

    def forget(self) -> None:
        """Drops the second moments of this step. Called after a step that does not use them."""
        self._used.update(self._moments)

    def gather(self, members: Sequence[Member], buffer: torch.Tensor, names: Names) -> torch.Tensor:
        """Copies the second moments of a group's parameters to ``buffer``, each in memory order."""
        for member in members:
            parameter = names.by_name[member.name]
            place = buffer[member.offset : member.offset + member.elements]
            moment = self.of(parameter)
            if moment is None:
                place.zero_()
                continue
            order = sorted(range(parameter.dim()), key=lambda axis: -parameter.stride(axis))
            place.view(member.shape).copy_(moment.permute(order))
            self._used.add(id(parameter))
        return buffer

    def _after_forward(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        if not output.requires_grad:
            return
        a = inputs[0].detach()

        # A hook on the output's gradient runs before DDP gets the gradients of the weights.
        def on_gradient(d: torch.Tensor) -> None:
            with torch.no_grad():
                d = d.detach()
                if module.weight.requires_grad:
                    self._add(module.weight, _WEIGHTS[type(module)](module, a, d))
                if module.bias is not None and module.bias.requires_grad:
                    self._add(module.bias, _bias(module, d))

        output.register_hook(on_gradient)

    def _add(self, parameter: torch.Tensor, moment: torch.Tensor) -> None:
        key = id(parameter)
        if key in self._used or key not in self._moments:
            self._moments[key] = moment.to("cpu", torch.float32)
            self._used.discard(key)
        else:
            self._moments[key] += moment.to("cpu", torch.float32)
