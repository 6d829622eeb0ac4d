"""Local steps on all ranks; each rank prints the results as JSON. test_ddp.py starts it."""

from __future__ import annotations

import copy
import io
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from ddp_support import Net, batch, digest, main, raises, same_on_all_ranks, scenario

import thinreduce

SPECS = ["fp32", "topk:density=0.05", "dqsg", "powersgd", "fft"]


def make(spec="fp32", *, net=None, optimizer=torch.optim.AdamW, lr=0.01, **options):
    """Returns a model that starts differently on every rank, its optimizer and its LocalSteps."""
    torch.manual_seed(7 + dist.get_rank())
    model = net or Net()
    sync = thinreduce.LocalSteps(model, spec, **options)
    return model, optimizer([p for p in model.parameters() if p.requires_grad], lr=lr), sync


def train(model, optimizer, sync, steps, first=0):
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        sync.step()


def differ_on_ranks(model) -> bool:
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model))
    return len(set(digests)) == len(digests)


@scenario
def all_ranks_hold_the_same_bits_after_a_round():
    for spec in SPECS:
        model, optimizer, sync = make(spec, every=4, check_replicas_every=1)
        same_on_all_ranks(model)  # rank 0's
        start = digest(model)
        train(model, optimizer, sync, 3)
        assert differ_on_ranks(model), spec
        train(model, optimizer, sync, 1, 3)
        same_on_all_ranks(model)
        assert digest(model) != start
        train(model, optimizer, sync, 5, 4)
        sync.synchronize()
        same = same_on_all_ranks(model)
        sync.synchronize()  # nothing is left; momentum must not move the parameters again
        assert digest(model) == same
        assert sync.stats()["exchanges"] == 3
        sync.close()


@scenario
def one_step_per_round_is_data_parallel_sgd():
    model, optimizer, sync = make(every=1, outer="sgd,lr=1", optimizer=torch.optim.SGD, lr=0.05)
    plain = copy.deepcopy(model)
    train(model, optimizer, sync, 10)
    for step in range(10):
        losses = [F.cross_entropy(plain(x), y) for x, y in (batch(step, r) for r in range(3))]
        gradients = torch.autograd.grad(torch.stack(losses).mean(), list(plain.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(plain.parameters(), gradients):
                parameter.sub_(0.05 * gradient)
    for one, other in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(one, other, atol=2e-6, rtol=1e-5), (one - other).abs().max()
    sync.close()


@scenario
def saved_anywhere_in_a_round_it_continues_to_the_same_bits():
    for spec in ("topk:density=0.05", "dqsg"):
        for options in ({"every": 4}, {"every": 6, "fragments": 3, "overlap": 1}):
            for saved_at in (5, 7, 8):
                model, optimizer, sync = make(spec, **options)
                train(model, optimizer, sync, saved_at)
                file = io.BytesIO()
                states = [one.state_dict() for one in (model, optimizer, sync)]
                torch.save(states, file)
                train(model, optimizer, sync, 9, saved_at)
                end = digest(model)
                sync.close()

                model, optimizer, sync = make(spec, **options)
                file.seek(0)
                for one, state in zip((model, optimizer, sync), torch.load(file)):
                    one.load_state_dict(state)
                assert sync.stats()["local_steps"] == saved_at
                train(model, optimizer, sync, 9, saved_at)
                assert digest(model) == end, (spec, options, saved_at)
                sync.close()


@scenario
def states_that_do_not_fit_are_refused():
    model, optimizer, sync = make("topk", every=4)
    train(model, optimizer, sync, 3)
    saved = sync.state_dict()
    with torch.no_grad():
        model.head.bias[0] += 1
    raises(thinreduce.BadState, "make LocalSteps first", lambda: sync.load_state_dict(saved))
    with torch.no_grad():
        model.head.bias[0] -= 1
    other = {**saved, "rank": (saved["rank"] + 1) % 3}
    raises(thinreduce.BadState, "this is rank", lambda: sync.load_state_dict(other))
    other = {**saved, "settings": saved["settings"].replace("every=4", "every=5")}
    raises(thinreduce.BadState, "LocalSteps.every=5", lambda: sync.load_state_dict(other))
    text = "LocalSteps.state_dict() returned (it has no 'format')"
    raises(thinreduce.BadState, text, lambda: sync.load_state_dict({}))
    sync.close()


@scenario
def frozen_and_tied_parameters():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(10, 128)
            self.head = nn.Linear(128, 10, bias=False)
            self.head.weight = self.tokens.weight
            self.frozen = nn.Linear(169, 128)
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.head(self.frozen(x.flatten(1)))

    torch.manual_seed(dist.get_rank())
    model, optimizer, sync = make("dqsg", net=Tied(), every=2)
    frozen = model.frozen.weight.clone()
    train(model, optimizer, sync, 4)
    same_on_all_ranks(model)
    assert model.head.weight is model.tokens.weight
    assert torch.equal(model.frozen.weight, frozen)
    assert sync.stats()["elements"] == 1280
    model.frozen.requires_grad_(True)
    sync.step()
    raises(thinreduce.BadInput, "make a new LocalSteps", sync.step)
    sync.close()


@scenario
def a_rank_that_can_not_start_an_exchange_tells_the_others():
    last = dist.get_world_size() - 1
    for call in ("step", "synchronize"):
        model, optimizer, sync = make("dqsg", every=2, patience=600)
        train(model, optimizer, sync, 3)
        if dist.get_rank() == last:
            next(model.parameters()).requires_grad_(False)
            raises(thinreduce.BadInput, "make a new LocalSteps", getattr(sync, call))
        else:
            text = f"rank {last} gave up: parameters were frozen"
            raises(thinreduce.LostPeer, text, getattr(sync, call))
        dist.barrier()
        sync.close()


@scenario
def bfloat16_keeps_changes_below_its_resolution():
    net = nn.Linear(64, 64, bias=False)
    nn.init.ones_(net.weight)
    net.bfloat16()
    sync = thinreduce.LocalSteps(net, "fp32", every=1, outer="sgd,lr=0.1")
    for _ in range(10):
        with torch.no_grad():
            net.weight += 2**-7  # one step of the format; a tenth of it reaches the anchor
        sync.step()
    same_on_all_ranks(net)
    # The anchor has moved by 10/10 of a step; without it, every tenth would be rounded away.
    assert torch.allclose(net.weight.float(), torch.full((64, 64), 1 + 2**-7)), net.weight[0, 0]
    sync.close()
    model, _, sync = make("topk", net=Net().bfloat16(), optimizer=torch.optim.SGD, every=3)
    for _ in range(6):
        with torch.no_grad():  # bfloat16 convolutions are not differentiable in every torch
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape).bfloat16())
        sync.step()
    same_on_all_ranks(model)
    sync.close()


@scenario
def buffers_are_averaged_or_left():
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(1)
            self.fc = nn.Linear(169, 10)
            self.register_buffer("mask", torch.tensor([float("-inf"), 0.1]))
            self.register_buffer("constant", torch.tensor([0.1, 0.7]))

        def forward(self, x):
            return self.fc(self.norm(x).flatten(1))

    for buffers in ("average", "leave"):
        model, optimizer, sync = make("dqsg", net=Normed(), every=3, buffers=buffers)
        train(model, optimizer, sync, 2)
        own = model.norm.running_mean.clone()
        train(model, optimizer, sync, 1, 2)
        seen = [None] * 3
        dist.all_gather_object(seen, model.norm.running_mean.tolist())
        assert (len({str(one) for one in seen}) == 1) == (buffers == "average"), seen
        if buffers == "average":
            assert not torch.equal(model.norm.running_mean, own)
        assert torch.equal(model.constant, torch.tensor([0.1, 0.7]))
        assert torch.equal(model.mask, torch.tensor([float("-inf"), 0.1]))
        assert int(model.norm.num_batches_tracked) == 3
        same_on_all_ranks(model)
        sync.close()
    raises(thinreduce.BadInput, "buffers must be", lambda: make(net=Normed(), buffers="mean"))


@scenario
def overlapped_exchanges_keep_local_steps():
    model, optimizer, sync = make("fp32", every=4, outer="sgd,lr=1", overlap=2, fragments=2)
    train(model, optimizer, sync, 11)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with sync.shared_parameters():
        same_on_all_ranks(model)
    for one, other in zip(model.parameters(), before):
        assert torch.equal(one, other)
    sync.synchronize()
    same_on_all_ranks(model)
    stats = sync.stats()
    assert stats["local_steps"] == 11 and stats["total"]["payload_bytes"] > 0, stats
    assert stats["wait_seconds"] > 0 and abs(stats["bits_per_parameter"] - 32) < 1, stats
    sync.close()


@scenario
def ranks_that_differ_get_one_error():
    odd = dist.get_rank() == 1
    for text, options in (
        ("LocalSteps.every=4 on rank 0, LocalSteps.every=5 on rank 1", {"every": 4 + odd}),
        ("LocalSteps.outer=sgd", {"outer": "sgd" if odd else "nesterov"}),
        ("rank 1 runs 'topk", {"spec": "topk" if odd else "fp32"}),
        ("LocalSteps.buffers=leave", {"buffers": "leave" if odd else "average"}),
        ("LocalSteps.model=", {"net": nn.Linear(5, 6 + odd)}),
    ):
        raises(thinreduce.Mismatch, text, lambda options=options: make(**options))


@scenario
def wrong_arguments_are_refused():
    for text, options in (
        ("outer step 'adam'", {"outer": "adam"}),
        ("fragments must be 1 to 4", {"every": 4, "fragments": 5}),
        ("overlap must be below 4", {"every": 4, "overlap": 4}),
        ("every must be a whole number", {"every": 0}),
        ("fragments must be at most 8, the tensors of the model", {"fragments": 9}),
        ("needs the plain module", {"net": nn.parallel.DistributedDataParallel(Net())}),
        ("no parameters", {"net": Net().requires_grad_(False)}),
    ):
        raises(thinreduce.BadInput, text, lambda options=options: make(**options))
    text = "itself; with LocalSteps use sketch:momentum=0 and the momentum of outer"
    raises(thinreduce.BadSpec, text, lambda: make("sketch:momentum=0.9"))
    for outer in ("sgd,lr=1", "nesterov,lr=0.7,momentum=0.9"):
        signs = partial(make, "demo:sign=on", outer=outer)
        raises(thinreduce.BadSpec, "with LocalSteps use demo:sign=off and the momentum", signs)
    _, _, sync = make("sketch:momentum=0.9", outer="sgd,lr=1")
    sync.close()


@scenario
def nan_is_refused_on_all_ranks_and_training_goes_on():
    model, optimizer, sync = make("topk", every=2)
    train(model, optimizer, sync, 3)
    good = model.head.weight.detach().clone()
    if dist.get_rank() == 2:
        with torch.no_grad():
            model.head.weight[0, 0] = float("nan")
    text = "the parameter 'head.weight' of rank 2 is NaN or Inf at element 0;"
    raises(thinreduce.NonFinite, text, sync.step)
    with torch.no_grad():
        model.head.weight.copy_(good)
    train(model, optimizer, sync, 2, 4)
    same_on_all_ranks(model)
    sync.close()


@scenario
def nan_in_a_buffer_is_named():
    norm = nn.BatchNorm1d(4)
    sync = thinreduce.LocalSteps(norm, "fp32", every=1)
    norm.running_mean[3] = float("nan")
    text = "the buffer 'running_mean' of rank 0 is NaN or Inf at element 3;"
    raises(thinreduce.NonFinite, text, sync.step)
    sync.close()


@scenario
def a_process_group_of_some_ranks():
    group = dist.new_group([1, 2])
    if dist.get_rank() > 0:
        torch.manual_seed(dist.get_rank())
        model = Net()
        sync = thinreduce.LocalSteps(model, "dqsg", every=2, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        train(model, optimizer, sync, 4)
        digests = [None] * 2
        dist.all_gather_object(digests, digest(model), group=group)
        assert digests[0] == digests[1]
        sync.close()


if __name__ == "__main__":
    main()
