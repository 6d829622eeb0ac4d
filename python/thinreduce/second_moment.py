"""Second moments of per-sample gradients, for the variance method.

Of every element of a weight, the sum over the local batch of the squared share that one sample has
in the gradient: with a loss that is a mean over the batch, sum_z (grad f_z / |B|)^2. It is computed
from what a layer sees anyway: its input, and the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F

from .errors import BadInput
from .groups import Member
from .names import Names


def _linear(module: torch.nn.Linear, a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    if a.dim() == 2:
        return d.square().t() @ a.square()
    # One sample uses the weight at several places: its share is their sum.
    a = a.reshape(a.shape[0], -1, a.shape[-1])
    d = d.reshape(d.shape[0], -1, d.shape[-1])
    return torch.bmm(d.transpose(1, 2), a).square().sum(0)


def _conv2d_samples(
    module: Any, a: torch.Tensor, d: torch.Tensor, *, kernel: Any, stride: Any, padding: Any,
    dilation: Any,
) -> torch.Tensor:
    batch, groups = a.shape[0], module.groups
    columns = F.unfold(a, kernel, dilation=dilation, padding=padding, stride=stride)
    columns = columns.reshape(batch, groups, -1, columns.shape[-1])
    d = d.reshape(batch, groups, d.shape[1] // groups, -1)
    # Places that a stride leaves over at the border are in neither.
    shares = torch.matmul(d, columns.transpose(2, 3))
    return shares.square().sum(0)


def _padded(module: Any, a: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The input with the padding that unfold can't do, and the padding that is left."""
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
    if len(kernel) == 1:  # as an image of height 1
        a, d = a.unsqueeze(2), d.unsqueeze(2)
        kernel, stride = (1, *kernel), (1, *stride)
        padding, dilation = (0, *padding), (1, *dilation)
    moment = _conv2d_samples(
        module, a, d, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    return moment.reshape(module.weight.shape)


_WEIGHTS: dict[type, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    torch.nn.Linear: _linear,
    torch.nn.Conv1d: _conv,
    torch.nn.Conv2d: _conv,
}


def _bias(module: Any, d: torch.Tensor) -> torch.Tensor:
    if isinstance(module, torch.nn.Linear):
        return d.reshape(d.shape[0], -1, d.shape[-1]).sum(1).square().sum(0)
    return d.reshape(d.shape[0], d.shape[1], -1).sum(2).square().sum(0)


class SecondMoment:
    """Watches the linear and convolution layers of a model; give it to ``State(second_moment=)``.

    Moments add up over backward passes until they are handed to the engine, as gradients do under
    ``no_sync``. 1-D parameters of other layers need none, because they travel uncompressed; other
    parameters raise BadInput. A layer that is used several times in one pass counts each use as a
    sample of its own.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._moments: dict[int, torch.Tensor] = {}
        self._used: set[int] = set()
        self._handles = []
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        for name, module in model.named_modules():
            if type(module) in _WEIGHTS:
                self._handles.append(module.register_forward_hook(self._after_forward))
                continue
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    raise BadInput(
                        f"SecondMoment can't follow '{name}.{own}' of {type(module).__name__}; it "
                        "knows " + ", ".join(kind.__name__ for kind in _WEIGHTS)
                    )

    def close(self) -> None:
        """Stops watching."""
        for handle in self._handles:
            handle.remove()

    def of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """The moment of a parameter since the last step, if there is one."""
        return None if id(parameter) in self._used else self._moments.get(id(parameter))

    def forget(self) -> None:
        """The step is over, and nobody asked: the next one starts anew."""
        self._used.update(self._moments)

    def gather(
        self, members: Sequence[Member], buffer: torch.Tensor, names: Names
    ) -> torch.Tensor:
        """Puts the members' moments side by side, each in its order of memory."""
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

        # Of the output, because it runs before the gradients of the weights are ready for DDP.
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
