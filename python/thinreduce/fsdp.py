"""Compressed gradients between the replicas of a model that ``fully_shard`` shards (FSDP2, HSDP).

In HSDP the ranks form a mesh: those of an island share the model's shards over a fast network, and
thin links join the islands. The reduce-scatter inside an island stays that of PyTorch; the
all-reduce between islands, of each rank's shard of the gradient, is compressed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch

from ._arguments import check_type
from ._rendezvous import check_group
from .ddp import State
from .errors import BadInput, Unavailable
from .rules import Spec


def attach(
    model: torch.nn.Module,
    spec: Spec = "fp32",
    *,
    process_group: torch.distributed.ProcessGroup | None = None,
    **options: Any,
) -> State:
    """Compresses the gradients between the replicas of a model of ``fully_shard``::

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        state = thinreduce.fsdp.attach(model, "dqsg")

    It takes the place of the all-reduce of HSDP, so it must be called after the last
    ``fully_shard`` and before the first step. A model that is sharded over one dimension only, each
    island with a mesh of its own, needs ``process_group``: the ranks that hold the same shard.
    ``options`` are those of :class:`thinreduce.State`, without ``model`` and ``second_moment``.
    A step is one backward pass that reduces gradients.
    """
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    check_group(process_group)
    for name in ("model", "second_moment"):
        if name in options:
            raise BadInput(
                f"{name}= is an argument of State only; thinreduce.fsdp.attach() has none"
            )
    sharded = [_ShardedModule(model, module, group) for module, group in _param_groups(model)]
    if not any(one.parameters for one in sharded):
        raise BadInput("the model has no parameter that fully_shard() shards and that trains")
    state = State(spec, process_group=_replicas(sharded, process_group), **options)
    state._gathers = False
    state._bind([pair for one in sharded for pair in one.named()])
    exchange = _Exchange(state)
    for one in sharded:
        one.take_over(exchange)
    return state


class _ShardedModule:
    """The parameters that ``fully_shard`` reduces together: those of one call."""

    def __init__(self, model: torch.nn.Module, module: Any, group: Any) -> None:
        self.module = module
        self.group = group
        names = {id(one): name for name, one in model.named_parameters()}
        self.name = next((name for name, one in model.named_modules() if one is module), "")
        # FSDP passes this rank's shards, padded to equal sizes, one behind the other.
        self.parameters = [
            (
                names[id(one.sharded_param)],
                torch.empty(one.padded_sharded_param_size, device="meta"),
                one,
            )
            for one in group.fsdp_params
        ]
        self._waiting: torch.Tensor | None = None  # the sum that is not all-reduced yet

    def named(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, shard) for name, shard, _ in self.parameters]

    def take_over(self, exchange: _Exchange) -> None:
        """Lets the exchange reduce the gradients instead of FSDP."""
        _drop_own_all_reduce(self.group)
        self.module.set_all_reduce_hook(lambda gradient: exchange.reduce(self, gradient))

    def shards_in(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """Returns the shards that a gradient consists of."""
        shards = [shard for _, shard, one in self.parameters if one.sharded_param.requires_grad]
        elements = sum(shard.numel() for shard in shards)
        if elements != gradient.numel():
            raise BadInput(
                f"module '{self.name}': FSDP reduces {gradient.numel()} elements, and the "
                f"parameters that train have {elements}: some got no gradient; call "
                "model.set_reduce_scatter_unused_params(True)"
            )
        return shards

    def accumulate(self, gradient: torch.Tensor) -> bool:
        """Returns whether the gradient is complete. Until then, with
        ``set_requires_all_reduce(False)``, it is added up here, and FSDP gets zeros."""
        if not self.group.all_reduce_grads:
            if self._waiting is None:
                self._waiting = gradient.clone()
            else:
                self._waiting += gradient
            gradient.zero_()
            return False
        if self._waiting is not None:
            gradient += self._waiting
            self._waiting = None
        return True


class _ShardBucket:
    """This rank's shard of a sharded module's gradient, in the form of a DDP bucket."""

    def __init__(self, index: int, gradient: torch.Tensor, shards: Sequence[torch.Tensor]) -> None:
        self._index = index
        self._gradient = gradient
        self._shards = shards

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        return self._gradient

    def parameters(self) -> Sequence[torch.Tensor]:
        return self._shards

    def is_last(self) -> bool:
        return False  # nobody knows; only groups that lie in several buckets need it


class _Exchange:
    """State that the hooks of all sharded modules use."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._replicas = torch.distributed.get_world_size(state._process_group)
        self._pass = -1  # the backward pass of the last gradient
        self._index = 0

    def reduce(self, module: _ShardedModule, gradient: torch.Tensor) -> None:
        """Replaces a gradient by its mean over the replicas. FSDP itself divides by the number of
        shards, before or after."""
        if not module.accumulate(gradient):
            return
        current = _backward_pass()
        self._index = self._index + 1 if current == self._pass else 0
        self._pass = current
        with self._state._ending_the_session():
            bucket = _ShardBucket(self._index, gradient, module.shards_in(gradient))
        with self._state.errors():
            self._state.reduce(bucket).wait()
        if module.group.gradient_divide_factor is not None:
            # FSDP divides by this factor, as it would the sum over all ranks.
            gradient.mul_(self._replicas)


def _backward_pass() -> int:
    """Returns the autograd engine's number of the backward pass that calls."""
    core: Any = import_module("torch._C")
    number: int = core._current_graph_task_id()
    return number


def _param_groups(model: torch.nn.Module) -> Iterator[tuple[Any, Any]]:
    """Returns the modules that fully_shard() was called with, and their parameter groups."""
    kind: Any = None
    # torch 1.13 can't import its own fsdp with Python 3.11.
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        kind = import_module("torch.distributed.fsdp").FSDPModule
    if kind is None or not hasattr(kind, "set_all_reduce_hook"):
        raise Unavailable(
            f"thinreduce.fsdp needs fully_shard() with set_all_reduce_hook(); torch "
            f"{torch.__version__} has none, torch 2.13 has it"
        )
    seen: set[int] = set()
    for module in model.modules():
        if not isinstance(module, kind):
            continue
        fsdp_module: Any = module
        for group in fsdp_module._get_fsdp_state()._fsdp_param_groups:
            if id(group) not in seen:  # fully_shard([a, b]) makes one for both
                seen.add(id(group))
                yield module, group


def _replicas(
    sharded: Sequence[_ShardedModule], given: torch.distributed.ProcessGroup | None
) -> torch.distributed.ProcessGroup | None:
    """Returns the ranks that hold the same shards as this one."""
    own = {
        id(group): group
        for group in (
            getattr(one.group.mesh_info, "replicate_process_group", None) for one in sharded
        )
    }
    if len(own) > 1:
        raise BadInput("fully_shard() was called with different meshes; use one mesh for the model")
    [replicas] = own.values()
    if replicas is None and given is None:
        raise BadInput(
            "the model is sharded over all ranks of its mesh, so there are no replicas to reduce "
            "between: give fully_shard() a mesh of two dimensions (replicate, shard), or "
            "attach() the process_group of the ranks that hold the same shard"
        )
    if replicas is not None and given is not None:
        raise BadInput(
            "the model's mesh has replicas of its own, so process_group= can't be given, too"
        )
    return replicas if given is None else given


def _drop_own_all_reduce(group: Any) -> None:
    """Lets FSDP forget that there are replicas, so that it calls the hook with the sums of this
    island; it would call it after an all-reduce of its own. Parameters keep their mesh."""
    own = group.mesh_info
    if not hasattr(own, "replicate_process_group"):
        return
    common: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_common")
    if not isinstance(own, common.HSDPMeshInfo):
        raise BadInput("the model is replicated without shards; use DistributedDataParallel for it")
    shards = common.FSDPMeshInfo(
        own.mesh, own.shard_mesh_dim, None, own.dp_mesh_dims, own.spmd_mesh
    )
    shards.reduce_scatter_process_group = own.reduce_scatter_process_group
    group.mesh_info = shards
    if group.post_forward_mesh_info is own:
        group.post_forward_mesh_info = shards
