"""Scenarios with two process groups of two ranks each. test_ddp.py starts it on four ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn as nn
from ddp_support import main, raises, scenario
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce


def halves():
    """Returns this rank's group of two, and the other one."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return groups if dist.get_rank() < 2 else groups[::-1]


@scenario
def a_model_is_averaged_over_its_own_group():
    own, other = halves()
    first = 0 if dist.get_rank() < 2 else 2
    for given in (None, own):
        model = DDP(nn.Linear(64, 64, bias=False), process_group=own)
        state = thinreduce.State("fp32", model=model, process_group=given)
        model.register_comm_hook(state, thinreduce.hook)
        # The gradient of every weight is the rank's number.
        (model(torch.eye(64)) * float(dist.get_rank())).sum().backward()
        mean = (first + first + 1) / 2
        assert (model.module.weight.grad == mean).all(), model.module.weight.grad
        assert state.state_dict()["world"] == 2
        state.close()
    model = DDP(nn.Linear(64, 64), process_group=own)
    raises(
        thinreduce.BadInput,
        "the DDP model's has",
        lambda: thinreduce.State("fp32", model=model, process_group=other),
    )
    bare = thinreduce.State("fp32")
    bare.bind(model).connect()
    assert bare.state_dict()["world"] == 2


@scenario
def a_model_of_some_ranks_is_not_averaged_over_all():
    own, _ = halves()
    model = DDP(nn.Linear(64, 64, bias=False), process_group=own)
    state = thinreduce.State("fp32")
    model.register_comm_hook(state, thinreduce.hook)
    loss = (model(torch.eye(64)) * float(dist.get_rank())).sum()
    raises(RuntimeError, "give the State model=, or process_group=", loss.backward)
    assert isinstance(state.error, thinreduce.BadInput), state.error
    # A rank may say that it means all ranks, and a second group of all ranks is no doubt.
    everybody = dist.new_group([0, 1, 2, 3])
    for group in (dist.group.WORLD, everybody):
        state = thinreduce.State("fp32", process_group=group).connect()
        assert state.state_dict()["world"] == 4
        state.close()


if __name__ == "__main__":
    main()
