"""Scenarios that all ranks run; each rank prints the results as JSON. test_ddp.py starts it."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Net(nn.Module):
    """Uses its layers in another order than it registers them, so that DDP rebuilds its buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(96, 64)
        self.conv = nn.Conv2d(1, 12, 5, stride=2)
        self.head = nn.Linear(64, 10)
        self.fc1 = nn.Linear(12 * 5 * 5, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv(x)).flatten(1)
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def batch(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 10, (8,), generator=generator)
    return torch.randn(8, 1, 13, 13, generator=generator) + labels.view(-1, 1, 1, 1) / 3, labels


def make(spec: Any, *, ddp: dict | None = None, net: nn.Module | None = None, **options):
    """Returns a model, its optimizer and its State; without a spec, plain DDP and None."""
    torch.manual_seed(7)
    model = DDP(net or Net(), bucket_cap_mb=0.02, **(ddp or {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    state = None
    if spec is not None:
        state = thinreduce.State(spec, model=model, optimizer=optimizer, **options)
        model.register_comm_hook(state, thinreduce.hook)
    return model, optimizer, state


def train(model, optimizer, steps, first: int = 0) -> float:
    loss = torch.zeros(())
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def digest(model: nn.Module) -> str:
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().contiguous().numpy().tobytes())
    return bits.hexdigest()


def same_on_all_ranks(model: nn.Module) -> str:
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model))
    assert len(set(digests)) == 1, "replicas have drifted apart"
    return digests[0]


def raises(kind: type, text: str, work) -> str:
    try:
        work()
    except kind as error:
        assert text in str(error), f"'{text}' is not in: {error}"
        return str(error)
    raise AssertionError(f"nothing was raised; expected {kind.__name__} with '{text}'")


METHODS = [method.name for method in thinreduce.methods()]


@scenario
def every_method_trains_and_replicas_stay_the_same():
    for spec in METHODS:
        model, optimizer, state = make(spec, check_replicas_every=1)
        first = train(model, optimizer, 1)
        last = train(model, optimizer, 8, 1)
        same_on_all_ranks(model)
        assert last < first + 1, f"{spec}: loss went from {first} to {last}"
        assert state.stats()["total"]["steps"] == 9, spec
        state.close()


@scenario
def fp32_is_what_ddp_does_itself():
    model, optimizer, _ = make("fp32")
    train(model, optimizer, 4)
    plain, plain_optimizer, _ = make(None)
    train(plain, plain_optimizer, 4)
    for own, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


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
        whole = [visit.whole for plan in state._plans.values() for visit in plan]
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


@scenario
def accumulation_exchanges_once():
    model, optimizer, state = make("fp32")
    plain, plain_optimizer, _ = make(None)
    for one, other in ((model, optimizer), (plain, plain_optimizer)):
        for step in range(3):
            other.zero_grad()
            with one.no_sync():
                x, y = batch(10 * step)
                F.cross_entropy(one(x), y).backward()
            x, y = batch(10 * step + 1)
            F.cross_entropy(one(x), y).backward()
            other.step()
    assert state.stats()["total"]["steps"] == 3
    for own, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


class Branches(nn.Module):
    """Uses one of two layers at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(169, 40)
        self.right = nn.Linear(169, 40)
        self.head = nn.Linear(40, 10)
        self.use_left = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.left if self.use_left else self.right
        return self.head(F.relu(layer(x.flatten(1))))


@scenario
def unused_parameters_are_fine():
    model, optimizer, _ = make(
        "topk", net=Branches(), ddp={"find_unused_parameters": True}, check_replicas_every=1
    )
    for step in range(8):
        # The ranks differ, too.
        model.module.use_left = step % 2 == 0 or (step % 3 == 0 and dist.get_rank() == 0)
        train(model, optimizer, 1, step)
    same_on_all_ranks(model)
    model, optimizer, _ = make("powersgd", net=Branches(), ddp={"static_graph": True})
    model.module.use_left = False
    train(model, optimizer, 5)
    same_on_all_ranks(model)


@scenario
def gradients_may_be_views_of_the_buckets():
    results = []
    for view in (False, True):
        model, optimizer, _ = make("dqsg", ddp={"gradient_as_bucket_view": view})
        train(model, optimizer, 5)
        results.append(same_on_all_ranks(model))
    assert results[0] == results[1]


@scenario
def two_models_at_a_time():
    alone = []
    for spec in ("topk", "dqsg"):
        model, optimizer, _ = make(spec)
        train(model, optimizer, 4)
        alone.append(same_on_all_ranks(model))
    one, other = make("topk"), make("dqsg")
    for step in range(4):
        x, y = batch(step)
        for _, optimizer, _ in (one, other):
            optimizer.zero_grad()
        (F.cross_entropy(one[0](x), y) + F.cross_entropy(other[0](x), y)).backward()
        for _, optimizer, _ in (one, other):
            optimizer.step()
    assert [same_on_all_ranks(one[0]), same_on_all_ranks(other[0])] == alone


@scenario
def rules_choose_by_name():
    model, optimizer, state = make({"fc*": "powersgd:basis=2", "*": "dqsg"}, min_size=100)
    train(model, optimizer, 4)
    same_on_all_ranks(model)
    specs = {}
    for group in state._groups.all:
        for member in group.members:
            specs[member.name] = group.spec.split(":")[0]
    assert specs["fc1.weight"] == specs["fc2.weight"] == "powersgd", specs
    assert specs["conv.weight"] == specs["head.weight"] == "dqsg", specs
    bare = thinreduce.State({"fc*": "powersgd:basis=2", "*": "dqsg"})
    raises(thinreduce.BadSpec, "model=", bare.connect)
    model, optimizer, state = make({"fc*": "topk"}, warmup_steps=0)
    raises(RuntimeError, "no rule matches parameter", lambda: train(model, optimizer, 1))


@scenario
def a_gradient_that_is_not_finite_reaches_the_loop_and_training_goes_on():
    model, optimizer, state = make("topk")
    train(model, optimizer, 3)
    x, y = batch(3)
    if dist.get_rank() == 1:
        x[0, 0, 0, 0] = float("nan")
    optimizer.zero_grad()
    text = raises(RuntimeError, "rank 1", lambda: F.cross_entropy(model(x), y).backward())
    assert "BadInput" in text or isinstance(state.error, thinreduce.BadInput), text
    train(model, optimizer, 3, 4)
    same_on_all_ranks(model)


@scenario
def an_exception_in_the_hook_reaches_the_loop():
    class Broken:
        def gather(self, *_):
            raise ZeroDivisionError("no moment today")

    model, optimizer, _ = make("topk", second_moment=Broken(), warmup_steps=0)
    try:
        train(model, optimizer, 1)
    except Exception as error:  # torch chooses the type
        assert "no moment today" in str(error), error
    else:
        raise AssertionError("nothing was raised")


@scenario
def different_specs_are_the_same_error_everywhere():
    model, optimizer, _ = make("topk" if dist.get_rank() == 0 else "dqsg")
    raises(RuntimeError, "rank 1 runs 'dqsg", lambda: train(model, optimizer, 1))


@scenario
def other_types_travel_as_float32():
    torch.manual_seed(7)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(169, 32), nn.Linear(32, 10)).double())
    state = thinreduce.State("fp32")
    model.register_comm_hook(state, thinreduce.hook)
    x, y = batch(0)
    F.cross_entropy(model(x.double()), y).backward()
    reference = nn.Sequential(nn.Flatten(), nn.Linear(169, 32), nn.Linear(32, 10)).double()
    reference.load_state_dict(model.module.state_dict())
    for rank in range(dist.get_world_size()):
        x, y = batch(0, rank)
        (F.cross_entropy(reference(x.double()), y) / dist.get_world_size()).backward()
    for own, other in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-6)


@scenario
def memory_order_is_kept():
    net = nn.Sequential(nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(784, 10))
    model, optimizer, state = make("powersgd", net=net.to(memory_format=torch.channels_last))
    train(model, optimizer, 4)
    same_on_all_ranks(model)
    shapes = {m.name: m.shape for group in state._groups.all for m in group.members}
    assert shapes["1.weight"] == (16, 3, 3, 8), shapes


@scenario
def uneven_inputs_join():
    model, optimizer, _ = make("topk")
    with model.join():
        train(model, optimizer, 4 + 2 * dist.get_rank())


@scenario
def a_group_of_its_own():
    group = dist.new_group(list(range(dist.get_world_size())))
    torch.manual_seed(7)
    model = DDP(Net(), process_group=group)
    state = thinreduce.State("dqsg", process_group=group)
    model.register_comm_hook(state, thinreduce.hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), 3)
    same_on_all_ranks(model)


@scenario
def second_moments_arrive():
    model, optimizer, state = make(None)
    moments = thinreduce.SecondMoment(model)
    given = []

    class Watched:
        def gather(self, members, buffer, names):
            result = moments.gather(members, buffer, names)
            given.append((members, result.clone(), names))
            return result

        def forget(self):
            moments.forget()

    state = thinreduce.State("topk", model=model, second_moment=Watched(), warmup_steps=2)
    model.register_comm_hook(state, thinreduce.hook)
    train(model, optimizer, 2)
    assert not given, "uncompressed steps need no moments"
    train(model, optimizer, 1, 2)
    assert given
    for members, buffer, _ in given:
        for member in members:
            part = buffer[member.offset : member.offset + member.elements]
            assert (part >= 0).all() and part.sum() > 0, member.name


@scenario
def stats_tell_what_was_sent():
    model, optimizer, state = make("dqsg:levels=7")
    train(model, optimizer, 4)
    stats = state.stats()
    elements = sum(one.numel() for one in model.parameters())
    assert stats["elements"] == elements and stats["step"] == 4, stats
    assert stats["total"]["steps"] == 4 and stats["total"]["elements"] == 4 * elements
    assert stats["ratio"] > 4 and stats["bytes_sent"] > 0, stats
    assert set(stats["seconds"]) == {"encode", "wire", "decode", "wait", "queued", "total"}
    for tag, values in state.scalars().items():
        assert isinstance(tag, str)
        assert values and all(isinstance(value, float) for value in values.values())
    json.dumps(stats)


@scenario
def a_throttled_link_is_slower():
    model, optimizer, state = make("fp32", link="2mbit")
    train(model, optimizer, 2)
    # 45,000 floats are 180 kB; each of two ranks sends half of them twice.
    assert state.stats()["seconds"]["wire"] > 0.3, state.stats()


def resident_kilobytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@scenario
def no_leak_over_two_thousand_steps():
    net = nn.Sequential(nn.Flatten(), nn.Linear(169, 16), nn.Linear(16, 10))
    model, optimizer, _ = make("topk", net=net)
    train(model, optimizer, 500)
    before = resident_kilobytes()
    train(model, optimizer, 1500, 500)
    grown = resident_kilobytes() - before
    assert grown < 2000, f"{grown} kB more after 1,500 steps"


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # DDP's first bucket would hold all of these models
    wanted = sys.argv[1:] or list(SCENARIOS)
    for name in wanted:
        try:
            SCENARIOS[name]()
            print(json.dumps({"scenario": name, "error": None}), flush=True)
        except BaseException:  # the test prints all of it
            print(json.dumps({"scenario": name, "error": traceback.format_exc()}), flush=True)
            if dist.get_world_size() > 1:
                break  # the ranks may no longer be at the same point
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
