"""The second moments of a layer's parameters, from tensors that backward has anyway.

In this file ``a`` is the input of a layer and ``d`` the gradient of its output. The first axis of
both is the sample; an input without that axis is one sample. A rule returns the second moments of
the layer's parameters by name.

A sample that uses a weight at several positions needs a gradient of its own. With ``groups``, the
gradients of that many groups of samples take its place: h is that of a group, and their sum g that
of the batch. If the samples are in random order, two of them share a group with the probability c,
and (sum of h^2 - c g^2) / (1 - c) is an unbiased estimate of the second moment. It is exact with
one sample per group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.grad import conv1d_weight, conv2d_weight

Moments = dict[str, torch.Tensor]
Rule = Callable[[Any, torch.Tensor, torch.Tensor, int], Moments]


def _sum_of_squares(samples: torch.Tensor) -> torch.Tensor:
    """Returns the sum over the samples, which are the first axis."""
    return torch.sum(samples.square(), 0)


def _of_groups(
    gradient: Callable[[slice], torch.Tensor], samples: int, groups: int
) -> torch.Tensor:
    """Returns the estimate from the gradients of groups whose sizes differ by at most one."""
    groups = min(groups, samples)
    ends = [samples * number // groups for number in range(groups + 1)]
    sizes = [end - begin for begin, end in zip(ends, ends[1:])]
    shared = sum(size * (size - 1) for size in sizes) / max(samples * (samples - 1), 1)
    total = gradient(slice(0, ends[1]))
    squares = total.square()
    for begin, end in zip(ends[1:], ends[2:]):
        part = gradient(slice(begin, end))
        total.add_(part)
        squares.addcmul_(part, part)
    # Rounding errors may make it negative.
    estimate: torch.Tensor = (
        squares.addcmul_(total, total, value=-shared).div_(1 - shared).clamp_(min=0)
    )
    return estimate


def _linear(module: torch.nn.Linear, a: torch.Tensor, d: torch.Tensor, groups: int) -> Moments:
    if a.dim() <= 2:
        a, d = torch.atleast_2d(a).square(), torch.atleast_2d(d).square()
        return {"weight": torch.mm(d.t(), a), "bias": d.sum(0)}
    # A sample uses the weight at several positions; its gradient is the sum over them.
    a = a.reshape(a.shape[0], -1, a.shape[-1])
    d = d.reshape(d.shape[0], -1, d.shape[-1])
    bias = _sum_of_squares(d.sum(1))
    if groups == 0:
        return {"weight": _sum_of_squares(torch.bmm(d.transpose(1, 2), a)), "bias": bias}

    def gradient(group: slice) -> torch.Tensor:
        return torch.mm(d[group].flatten(0, 1).t(), a[group].flatten(0, 1))

    return {"weight": _of_groups(gradient, d.shape[0], groups), "bias": bias}


def _padded(module: Any, a: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Applies the padding that unfold does not support; returns the input and the other padding."""
    if module.padding_mode != "zeros":
        return F.pad(a, module._reversed_padding_repeated_twice, mode=module.padding_mode), (
            0,
        ) * len(module.kernel_size)
    if isinstance(module.padding, str):
        return F.pad(a, module._reversed_padding_repeated_twice), (0,) * len(module.kernel_size)
    return a, tuple(module.padding)


def _conv(module: Any, a: torch.Tensor, d: torch.Tensor, groups: int) -> Moments:
    if a.dim() == len(module.kernel_size) + 1:
        a, d = a.unsqueeze(0), d.unsqueeze(0)
    a, padding = _padded(module, a)
    if groups == 0:
        weight = _exact_conv(module, a, d, padding)
    else:
        weight_of: Any = conv1d_weight if len(module.kernel_size) == 1 else conv2d_weight

        def gradient(group: slice) -> torch.Tensor:
            one: torch.Tensor = weight_of(
                a[group], module.weight.shape, d[group], module.stride, padding, module.dilation,
                module.groups,
            )  # fmt: skip
            return one

        weight = _of_groups(gradient, a.shape[0], groups)
    return {"weight": weight, "bias": _sum_of_squares(d.flatten(2).sum(2))}


def _exact_conv(
    module: Any, a: torch.Tensor, d: torch.Tensor, padding: tuple[int, ...]
) -> torch.Tensor:
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if len(kernel) == 1:  # treated as an image of height 1
        a, d = a.unsqueeze(2), d.unsqueeze(2)
        kernel, stride = (1, *kernel), (1, *stride)
        padding, dilation = (0, *padding), (1, *dilation)
    batch, groups = a.shape[0], module.groups
    columns = F.unfold(a, kernel, dilation=dilation, padding=padding, stride=stride)
    columns = columns.reshape(batch, groups, -1, columns.shape[-1])
    d = d.reshape(batch, groups, d.shape[1] // groups, -1)
    # Border elements that the stride skips are in neither factor.
    weight = _sum_of_squares(torch.matmul(d, columns.transpose(2, 3)))
    shaped: torch.Tensor = weight.reshape(module.weight.shape)
    return shaped


def _embedding(
    module: torch.nn.Embedding, a: torch.Tensor, d: torch.Tensor, groups: int
) -> Moments:
    samples = a.shape[0] if a.dim() > 0 else 1
    rows = a.reshape(samples, -1)
    d = d.reshape(-1, d.shape[-1])
    if module.scale_grad_by_freq:
        counts = torch.bincount(rows.flatten(), minlength=module.num_embeddings)
        d = d / counts[rows.flatten()].unsqueeze(1)
    # A sample that uses a row several times has their sum as its gradient.
    first = torch.arange(samples, device=rows.device).unsqueeze(1) * module.num_embeddings
    pairs, place = torch.unique((first + rows).flatten(), return_inverse=True)
    sums = d.new_zeros(len(pairs), d.shape[1]).index_add_(0, place, d)
    weight = torch.zeros(module.weight.shape, dtype=d.dtype, device=d.device)
    weight.index_add_(0, pairs % module.num_embeddings, sums.square())
    if module.padding_idx is not None:
        weight[module.padding_idx] = 0
    return {"weight": weight}


def _layer_norm(
    module: torch.nn.LayerNorm, a: torch.Tensor, d: torch.Tensor, groups: int
) -> Moments:
    shape = tuple(module.normalized_shape)
    samples = a.shape[0] if a.dim() > len(shape) else 1
    weight = d * F.layer_norm(a, shape, None, None, module.eps)
    return {
        "weight": _sum_of_squares(weight.reshape(samples, -1, *shape).sum(1)),
        "bias": _sum_of_squares(d.reshape(samples, -1, *shape).sum(1)),
    }


_RULES: dict[type[torch.nn.Module], Rule] = {
    torch.nn.Linear: _linear,
    torch.nn.Conv1d: _conv,
    torch.nn.Conv2d: _conv,
    torch.nn.Embedding: _embedding,
    torch.nn.LayerNorm: _layer_norm,
}


def rule_for(module: torch.nn.Module) -> Rule | None:
    """Returns the rule of a layer; None if it has none. A subclass computes the same as its base
    unless it has its own forward()."""
    for kind, rule in _RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule
    return None
