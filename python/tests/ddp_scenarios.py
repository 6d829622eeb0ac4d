"""Scenarios that all ranks run; each rank prints the results as JSON. test_ddp.py starts it."""

from __future__ import annotations

import json
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from ddp_support import Net, batch, main, make, raises, same_on_all_ranks, scenario, train
from torch.nn.parallel import DistributedDataParallel as DDP

import thinreduce

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
def auto_plans_the_same_on_all_ranks():
    model, optimizer, state = make("auto", link="10mbit,1ms", check_replicas_every=1)
    assert state.plan() is None
    train(model, optimizer, 8)
    same_on_all_ranks(model)
    plan = state.plan()
    assert plan["trials"] == 1 and plan["reason"], plan
    specs = [bucket["spec"] for bucket in plan["buckets"]]
    assert any(spec != "fp32" for spec in specs), plan
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, specs)
    assert all(other == specs for other in everywhere), everywhere
    saved = state.state_dict()
    state.load_state_dict(saved)
    train(model, optimizer, 2, 8)
    same_on_all_ranks(model)
    state.close()
    other, _, fixed = make("fp32")
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    assert fixed.plan() is None
    fixed.close()


@scenario
def fp32_is_what_ddp_does_itself():
    model, optimizer, _ = make("fp32")
    train(model, optimizer, 4)
    plain, plain_optimizer, _ = make(None)
    train(plain, plain_optimizer, 4)
    for own, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


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
    for group in state._progress.groups.all:
        for member in group.members:
            specs[member.name] = group.spec.split(":")[0]
    assert specs["fc1.weight"] == specs["fc2.weight"] == "powersgd", specs
    assert specs["conv.weight"] == specs["head.weight"] == "dqsg", specs
    bare = thinreduce.State({"fc*": "powersgd:basis=2", "*": "dqsg"})
    raises(thinreduce.BadSpec, "model=", bare.connect)
    raises(thinreduce.BadSpec, "no rule matches parameter", lambda: make({"fc*": "topk"}))
    raises(
        thinreduce.BadSpec,
        "the rule 'fc9*' applies to no parameter",
        lambda: make({"fc9*": "topk", "*": "dqsg"}),
    )
    raises(
        thinreduce.BadSpec,
        "the rule 'fc1*' applies to no parameter",
        lambda: make({"fc*": "topk", "fc1*": "fp32", "*": "dqsg"}),
    )
    make({"fc*": "topk", "conv*": "topk", "head*": "fp32", "*": "dqsg"})  # "*" may be idle


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
    shapes = {m.name: m.shape for group in state._progress.groups.all for m in group.members}
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
        missing = moments.missing

        def gather(self, members, buffer, names, values):
            result = moments.gather(members, buffer, names, values)
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


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.tokens(x)).mean(1))


@scenario
def variance_trains_a_transformer():
    torch.manual_seed(7)
    model = DDP(Transformer(), bucket_cap_mb=0.02)
    state = thinreduce.State(
        "variance", model=model, second_moment=thinreduce.SecondMoment(model), warmup_steps=1
    )
    model.register_comm_hook(state, thinreduce.hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(12):
            x, y = batch(step % 4)
            tokens = (x.flatten(1)[:, :12].abs() * 10).long().clamp(max=39)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    same_on_all_ranks(model)
    assert losses[-1] < losses[0], losses
    texts = [str(one.message) for one in caught if "SecondMoment" in str(one.message)]
    assert len(texts) == 1, texts
    for name in ("in_proj_weight", "out_proj.weight"):
        assert f"'block.self_attn.{name}'" in texts[0], texts
    assert "bias" not in texts[0] and "linear1" not in texts[0], texts


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


if __name__ == "__main__":
    main()
