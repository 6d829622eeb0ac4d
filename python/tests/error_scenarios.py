"""Scenarios in which something goes wrong. test_ddp.py starts it on two ranks."""

from __future__ import annotations

import math
import warnings
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_support import batch, main, make, raises, same_on_all_ranks, scenario, train

import thinreduce
from thinreduce import _buckets, _reduction, stats


def backward(model, step: int, *, bad: float | None = None) -> None:
    """Runs one step's backward pass. With ``bad``, rank 1's gradient of the first layer, which is
    in the last bucket, has that value; all other gradients are finite."""
    x, y = batch(step)
    model.zero_grad()
    factor = bad if bad is not None and dist.get_rank() == 1 else 1.0
    handle = model.module.conv.weight.register_hook(lambda grad: grad * factor)
    try:
        F.cross_entropy(model(x), y).backward()
    finally:
        handle.remove()


@scenario
def a_gradient_that_is_not_finite_reaches_the_loop_and_training_goes_on():
    for warmup in (0, 5):
        model, optimizer, state = make("topk", nonfinite="raise", warmup_steps=warmup)
        train(model, optimizer, 3)
        text = raises(RuntimeError, "rank 1", lambda m=model: backward(m, 3, bad=math.nan))
        assert "element 0 of tensor 'conv.weight'" in text, text
        assert isinstance(state.error, thinreduce.NonFinite), state.error
        assert isinstance(state.error, thinreduce.BadInput)
        train(model, optimizer, 3, 4)
        same_on_all_ranks(model)


@scenario
def a_guard_names_a_rank_whose_gradient_is_far_too_large():
    for guard in ("report", "clip", "refuse"):
        model, optimizer, state = make("topk", guard=guard, guard_factor=20.0, warmup_steps=0)
        train(model, optimizer, 2)
        assert state.stats()["outliers"] == {}
        if guard == "refuse":
            text = raises(RuntimeError, "rank 1 has", lambda m=model: backward(m, 2, bad=1e6))
            assert "this bucket was not reduced" in text, text
            assert isinstance(state.error, thinreduce.BadInput), state.error
        else:
            backward(model, 2, bad=1e6)
            assert list(state.stats()["outliers"]) == [1], state.stats()
            assert state.stats()["total"]["outliers"][1] > 20
        train(model, optimizer, 2, 4)
        same_on_all_ranks(model)
    raises(thinreduce.BadInput, "guard must be", lambda: thinreduce.State(guard="on"))
    raises(thinreduce.BadInput, "guard_factor", lambda: thinreduce.State(guard_factor=1.0))


def scaled_loop(spec, bad: dict[int, float], **options):
    """Trains as with a GradScaler: a step whose gradients are not all finite is not applied."""
    model, optimizer, state = make(spec, **options)
    skipped = []
    for step in range(8):
        backward(model, step, bad=bad.get(step))
        if all(torch.isfinite(one.grad).all() for one in model.parameters()):
            optimizer.step()
        else:
            skipped.append(step)
    return model, state, skipped


@scenario
def all_ranks_skip_a_step_together():
    for spec in ("fp32", "topk:density=0.05", "powersgd", "sketch:momentum=0.9", "gradiveq"):
        for warmup in (0, 1):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model, state, skipped = scaled_loop(
                    spec, {0: math.nan, 3: math.inf, 4: math.nan}, warmup_steps=warmup
                )
            assert skipped == [0, 3, 4], f"{spec}: {skipped}"
            assert state.skipped == 3 and state.error is None
            texts = [str(one.message) for one in caught if "was skipped" in str(one.message)]
            assert len(texts) == 1 and "'conv.weight'" in texts[0], texts
            same_on_all_ranks(model)
            state.close()


@scenario
def a_skipped_step_leaves_the_engine_as_if_it_had_not_been():
    # With the same batches and without the bad steps, training has the same bits.
    for spec in ("topk:density=0.05", "powersgd", "dqsg", "sketch:momentum=0.9", "gradiveq"):
        for mode in ("skip", "raise"):
            model, optimizer, state = make(spec, nonfinite=mode, warmup_steps=1)
            for step in range(6):
                if step in (2, 4):
                    try:
                        backward(model, 100 + step, bad=math.inf)
                        assert mode == "skip"
                    except RuntimeError as error:
                        assert mode == "raise", error
                    if step == 4:
                        saved = state.state_dict()
                train(model, optimizer, 1, step)
            found = same_on_all_ranks(model)
            groups = [[one.name for one in group.members] for group in state._progress.groups.all]
            if "momentum" not in spec:  # others have reduced some groups before they find the Inf
                assert len(groups) > 1 and "conv.weight" in groups[-1], groups
            state.close()
            model, optimizer, state = make(spec, warmup_steps=1)
            train(model, optimizer, 4)
            expected = state.state_dict()["engine"]
            assert saved["engine"] == expected, f"{spec}, {mode}: the saved state differs"
            train(model, optimizer, 2, 4)
            assert same_on_all_ranks(model) == found, f"{spec}, {mode}"
            state.close()


@scenario
def exceptions_of_the_exchange_can_be_caught_by_their_class():
    model, optimizer, state = make("topk", nonfinite="raise", warmup_steps=0)
    train(model, optimizer, 1)

    def failing():
        with state.errors():
            backward(model, 1, bad=math.nan)

    raises(thinreduce.NonFinite, "'conv.weight'", failing)

    def other():
        with state.errors():
            raise RuntimeError("something else")

    assert raises(RuntimeError, "something else", other) == "something else"
    with state.errors():
        train(model, optimizer, 2, 2)
    model, optimizer, state = make("topk" if dist.get_rank() == 0 else "dqsg")

    def mismatch():
        with state.errors():
            train(model, optimizer, 1)

    raises(thinreduce.Mismatch, "rank 1 runs 'dqsg", mismatch)


@scenario
def an_exception_in_the_hook_reaches_the_loop():
    class Broken:
        def gather(self, *_):
            raise ZeroDivisionError("no moment today")

    model, optimizer, state = make("topk", second_moment=Broken(), warmup_steps=0)
    try:
        train(model, optimizer, 1)
    except Exception as error:  # torch chooses the type
        assert "no moment today" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    # The other rank's exception may be the first to arrive.
    assert isinstance(state.error, (ZeroDivisionError, thinreduce.LostPeer)), state.error
    assert "no moment today" in str(state.error), state.error


@scenario
def an_exception_in_one_ranks_hook_reaches_all():
    # In the middle of a step: the others have submitted buckets that this rank never will.
    for warmup in (1, 5):
        model, optimizer, state = make("topk", warmup_steps=warmup, patience=600)
        train(model, optimizer, 2)
        kept = _reduction.Reduction._submit
        calls = []

        def submit(*arguments, kept=kept, calls=calls):
            calls.append(1)
            if len(calls) == 2:
                raise ZeroDivisionError("no bucket today")
            return kept(*arguments)

        if dist.get_rank() == 1:
            _reduction.Reduction._submit = submit
        try:
            train(model, optimizer, 1, 2)
        except Exception as error:  # torch chooses the type
            assert "no bucket today" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        finally:
            _reduction.Reduction._submit = kept
        state._reduction.worker.drain()  # buckets in flight fail after it
        if dist.get_rank() == 1:
            assert isinstance(state.error, ZeroDivisionError), state.error
        else:
            assert isinstance(state.error, thinreduce.LostPeer), state.error
            text = "rank 1 gave up: ZeroDivisionError: no bucket today"
            assert text in str(state.error), state.error
        assert state.state_dict()["step"] >= 2  # can still be saved
        dist.barrier()
        state.close()


@scenario
def a_state_that_one_rank_can_not_load_is_an_error_of_all():
    model, optimizer, state = make("topk", warmup_steps=0)
    train(model, optimizer, 2)
    saved = state.state_dict()
    dist.barrier()
    state.close()
    model, optimizer, state = make("topk", warmup_steps=0, patience=600)
    if dist.get_rank() == 1:
        saved["engine"] = saved["engine"][:-3]
    state.load_state_dict(saved)
    raises(RuntimeError, "saved state", lambda: train(model, optimizer, 1))
    kind = thinreduce.BadState if dist.get_rank() == 1 else thinreduce.LostPeer
    assert isinstance(state.error, kind), state.error
    dist.barrier()
    state.close()


def fail(*_, **__):
    raise MemoryError("no memory today")


@scenario
def an_exception_after_the_exchange_reaches_the_loop():
    for owner, name in (
        (_buckets.DdpBucket, "_copy_back"),
        (_buckets.Gathering, "_scatter"),
        (stats.Stats, "add"),
    ):
        model, optimizer, state = make("topk", warmup_steps=0)
        train(model, optimizer, 1)  # then DDP rebuilds its buckets, so that groups are gathered
        kept = getattr(owner, name)
        setattr(owner, name, fail)
        try:
            work = partial(train, model, optimizer, 1, 1)
            raises(RuntimeError, "no memory today", work)
        finally:
            setattr(owner, name, kept)
        assert isinstance(state.error, MemoryError), f"{name}: {state.error}"
        train(model, optimizer, 2, 2)  # the State's thread goes on
        same_on_all_ranks(model)
        state.close()


@scenario
def sparse_gradients_are_refused():
    for spec in ("fp32", "topk"):
        net = torch.nn.Embedding(100, 32, sparse=True)
        model, _, state = make(spec, net=net, warmup_steps=0)
        loss = model(torch.arange(8) + dist.get_rank()).sum()
        text = raises(RuntimeError, "has sparse gradients", loss.backward)
        assert "Embedding(sparse=False)" in text, text
        # The other rank's error may be the first to arrive.
        assert isinstance(state.error, (thinreduce.BadInput, thinreduce.LostPeer)), state.error


@scenario
def different_specs_are_the_same_error_everywhere():
    model, optimizer, _ = make("topk" if dist.get_rank() == 0 else "dqsg")
    raises(RuntimeError, "rank 1 runs 'dqsg", lambda: train(model, optimizer, 1))


@scenario
def options_that_differ_are_named():
    rank = dist.get_rank()
    for first, second, text in (
        ({"warmup_steps": 1}, {"warmup_steps": 3}, "State.warmup_steps=1 on rank 0"),
        ({"nonfinite": "skip"}, {"nonfinite": "raise"}, "State.nonfinite=skip on rank 0"),
        ({"seed": 1}, {"seed": 2}, "seed=1 on rank 0, seed=2 on rank 1"),
    ):
        model, optimizer, state = make("topk", **(second if rank else first))
        raises(RuntimeError, text, partial(train, model, optimizer, 1))
        assert isinstance(state.error, thinreduce.Mismatch), state.error
    rules = {"fc*": "topk", "*": "dqsg" if rank else "fp32"}
    model, optimizer, state = make(rules)
    raises(RuntimeError, "State.rules=fc*=topk", lambda: train(model, optimizer, 1))


@scenario
def a_link_on_one_rank_only_is_named():
    model, optimizer, state = make("fp32", link="100Mbit" if dist.get_rank() == 1 else "")
    raises(
        RuntimeError,
        "rank 1 emulates a link of 100mbit, rank 0 none",
        lambda: train(model, optimizer, 1),
    )
    assert isinstance(state.error, thinreduce.Mismatch), state.error


if __name__ == "__main__":
    main()
