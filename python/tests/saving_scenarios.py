"""Residuals over rebuilt buckets, saved states and other worlds. test_ddp.py starts it."""

from __future__ import annotations

import pickle

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_support import Net, batch, main, make, raises, same_on_all_ranks, scenario, train
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce


def recording(contents: list):
    def hook(state, bucket):
        if bucket.index() == 0:
            contents.append([])
        contents[-1].append([tuple(one.shape) for one in bucket.parameters()])
        return thinreduce.hook(state, bucket)

    hook.__annotations__ = dict(thinreduce.hook.__annotations__)
    return hook


@scenario
def buckets_are_rebuilt_and_nothing_is_lost():
    # The means that were delivered and the residuals add up to the true means, over the rebuild.
    for warmup in (0, 1):
        torch.manual_seed(7)
        model = DDP(Net(), bucket_cap_mb=0.02)
        state = thinreduce.State("topk:density=0.02", model=model, warmup_steps=warmup)
        contents = []
        model.register_comm_hook(state, recording(contents))
        reference = Net()
        reference.load_state_dict(model.module.state_dict())
        delivered = [torch.zeros_like(one) for one in model.parameters()]
        true = [torch.zeros_like(one) for one in model.parameters()]
        for step in range(5):
            model.zero_grad()
            x, y = batch(step)
            F.cross_entropy(model(x), y).backward()
            for one, total in zip(model.parameters(), delivered):
                total.add_(one.grad)
            for rank in range(dist.get_world_size()):
                reference.zero_grad()
                x, y = batch(step, rank)
                F.cross_entropy(reference(x), y).backward()
                for one, total in zip(reference.parameters(), true):
                    total.add_(one.grad / dist.get_world_size())
        assert contents[0] != contents[1], "DDP was expected to rebuild its buckets"
        assert contents[1] == contents[4]
        whole = [visit.whole for plan in state._reduction.plans.values() for visit in plan]
        assert len(contents[1]) > 1
        if warmup == 1:
            assert all(whole), "after the rebuild no gradient should be copied"
        else:
            assert not all(whole), "this must test groups that lie in several DDP buckets"
        # Gradients of zero, until the residuals are sent.
        for _ in range(150):
            model.zero_grad()
            x, y = batch(0)
            (F.cross_entropy(model(x), y) * 0).backward()
            for one, total in zip(model.parameters(), delivered):
                total.add_(one.grad)
        for one, other in zip(delivered, true):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@scenario
def resuming_gives_the_same_bits():
    for spec in (
        "topk:density=0.05",
        "powersgd:basis=2",
        "gradiveq",
        "dqsg:feedback=on",
        "sketch:momentum=0.9",
    ):
        model, optimizer, state = make(spec)
        train(model, optimizer, 4)
        saved_model = {name: one.clone() for name, one in model.module.state_dict().items()}
        saved = pickle.loads(pickle.dumps(state.state_dict()))
        pickled = pickle.dumps(state)
        train(model, optimizer, 4, 4)
        expected = same_on_all_ranks(model)
        state.close()

        # A new DDP starts with buckets that differ from the rebuilt ones.
        model, optimizer, state = make(spec)
        model.module.load_state_dict(saved_model)
        state.load_state_dict(saved)
        train(model, optimizer, 4, 4)
        assert same_on_all_ranks(model) == expected, f"{spec}: state_dict"
        state.close()

        model, optimizer, _ = make(None)
        model.module.load_state_dict(saved_model)
        state = pickle.loads(pickled).bind(model)
        model.register_comm_hook(state, thinreduce.hook)
        train(model, optimizer, 4, 4)
        assert same_on_all_ranks(model) == expected, f"{spec}: pickle"
        state.close()

        # A State in the middle of a run loads an earlier state.
        model.module.load_state_dict(saved_model)
        model, optimizer, state = make(spec, net=model.module)
        train(model, optimizer, 2)
        model.module.load_state_dict(saved_model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        state.load_state_dict(saved)
        train(model, optimizer, 4, 4)
        assert same_on_all_ranks(model) == expected, f"{spec}: load into a running State"
        state.close()


@scenario
def a_state_of_another_rank_world_or_spec_is_refused():
    model, optimizer, state = make("topk")
    train(model, optimizer, 3)
    saved = state.state_dict()
    world, rank = dist.get_world_size(), dist.get_rank()
    _, _, other = make("topk")
    refused = thinreduce.BadState
    raises(
        refused,
        f"world of 7 ranks, this one has {world}",
        lambda: other.load_state_dict({**saved, "world": 7}),
    )
    raises(
        refused,
        f"belongs to rank {(rank + 1) % world}, this is rank {rank}",
        lambda: other.load_state_dict({**saved, "rank": (rank + 1) % world}),
    )
    raises(refused, "topk", lambda: make("dqsg")[2].load_state_dict(saved))
    raises(refused, "format", lambda: other.load_state_dict({}))
    raises(refused, "seed", lambda: make("topk", seed=5)[2].load_state_dict(saved))


@scenario
def residuals_move_to_another_world():
    model, optimizer, state = make("topk:density=0.05")
    train(model, optimizer, 4)
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state.state_dict())
    for world in (1, 5):
        assert [one["rank"] for one in thinreduce.redistribute(states, world)] == list(range(world))
    # To one rank and back.
    there = thinreduce.redistribute(states, 1)
    back = thinreduce.redistribute(there, dist.get_world_size())
    other, other_optimizer, other_state = make("topk:density=0.05")
    other_state.load_state_dict(back[dist.get_rank()])
    train(other, other_optimizer, 3)
    same_on_all_ranks(other)
    raises(
        thinreduce.BadState,
        "step",
        lambda: thinreduce.redistribute([states[0], {**states[1], "step": 99}], 2),
    )


if __name__ == "__main__":
    main()
