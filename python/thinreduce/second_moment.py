"""Computes second moments of per-sample gradients, for the variance method.

The second moment of an element is the sum over the local batch B of (gradient of the sample / |B|)
squared: sum_z (grad f_z / |B|)^2, for a loss that is the mean of f_z over the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ._arguments import check_type, whole_number
from ._moment_rules import rule_for
from .errors import BadInput
from .groups import Member, memory_order
from .names import Names


class SecondMoment:
    """Computes second moments of per-sample gradients; pass it to ``State(second_moment=)``.

    The second moment of an element is the sum over the local batch of (gradient of the sample /
    batch size) squared, for a loss that is a mean over the batch. It is computed during backward
    for Linear, Conv1d, Conv2d, Embedding and LayerNorm layers and their subclasses without a
    forward() of their own. The first axis of a layer's input is the sample; an input without it is
    one sample.

    Other parameters of the model (of MultiheadAttention or LSTM, for example) have none, and
    neither has one of a layer that was called with its input as a keyword, before torch 2.0. The
    gradient of a whole step then counts as one sample, as in the variance method without second
    moments. A warning names such parameters, and :attr:`missing` holds their names.

    Second moments add up over the backward passes of a step, as gradients do under ``no_sync``. If
    a layer is used several times in one forward pass, each use counts as a separate sample.

    ``groups``: 0 computes the second moments exactly. 2 or more: convolutions, and linear layers
    whose samples have positions, get an unbiased estimate from the gradients of that many groups of
    samples, which takes less time and memory. The samples of a batch must be in random order.
    """

    def __init__(self, model: torch.nn.Module, groups: int = 0) -> None:
        check_type("model", model, torch.nn.Module, "a torch.nn.Module")
        self._groups = whole_number("groups", groups)
        if groups == 1:
            raise BadInput(
                "groups must be 0, or 2 or more because one group has no variance; it is 1"
            )
        #: Names of the parameters whose second moment was not known in some step.
        self.missing: set[str] = set()
        self._moments: dict[int, torch.Tensor] = {}
        self._used: set[int] = set()
        self._unseen: set[int] = set()  # parameters that had a use in this step without a moment
        self._handles: list[RemovableHandle] = []
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        for module in model.modules():
            if rule_for(module) is not None:
                self._handles.append(self._watch(module))

    def _watch(self, module: Any) -> RemovableHandle:
        if "with_kwargs" in inspect.signature(module.register_forward_hook).parameters:

            def hook(module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
                self._after_forward(module, (*inputs, *keywords.values()), output)

            handle: RemovableHandle = module.register_forward_hook(hook, with_kwargs=True)
        else:
            handle = module.register_forward_hook(self._after_forward)
        return handle

    def close(self) -> None:
        """Removes its hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Returns the second moment of a parameter in this step, or None if it has none."""
        key = id(parameter)
        return None if key in self._used or key in self._unseen else self._moments.get(key)

    def forget(self) -> None:
        """Drops the second moments of this step. Called after a step that does not use them."""
        self._used.update(self._moments)
        self._unseen.clear()

    def gather(
        self, members: Sequence[Member], buffer: torch.Tensor, names: Names, values: torch.Tensor
    ) -> torch.Tensor:
        """Copies the second moments of a group's parameters to ``buffer``, each in memory order.

        ``values`` is the group's gradient. Its squares stand in for second moments that are not
        known.
        """
        for member in members:
            parameter = names.by_name[member.name]
            place = slice(member.offset, member.offset + member.elements)
            moment = self.of(parameter)
            if moment is None:
                torch.square(values[place], out=buffer[place])
                if buffer[place].any():
                    self.missing.add(member.name)
            else:
                order = memory_order(parameter)
                buffer[place].view(member.shape).copy_(moment.permute(order))
            self._used.add(id(parameter))
            self._unseen.discard(id(parameter))
        # A square may overflow where the gradient does not.
        buffer.clamp_(max=torch.finfo(torch.float32).max)
        return buffer

    def _after_forward(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        if not output.requires_grad:
            return
        own = {
            name: parameter
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        if not own:
            return
        if not inputs:  # it was given as a keyword
            self._unseen.update(map(id, own.values()))
            return
        a = inputs[0].detach()
        rule = rule_for(module)
        assert rule is not None

        # A hook on the output's gradient runs before DDP gets the gradients of the weights.
        def on_gradient(d: torch.Tensor) -> None:
            with torch.no_grad():
                # Half precision can't hold the squares of scaled gradients.
                x = a.float() if a.is_floating_point() else a
                for name, moment in rule(module, x, d.detach().float(), self._groups).items():
                    if name in own:
                        self._add(own[name], moment)

        output.register_hook(on_gradient)

    def _add(self, parameter: torch.Tensor, moment: torch.Tensor) -> None:
        key = id(parameter)
        if key in self._used or key not in self._moments:
            self._moments[key] = moment.to("cpu", torch.float32)
            self._used.discard(key)
        else:
            self._moments[key] += moment.to("cpu", torch.float32)
