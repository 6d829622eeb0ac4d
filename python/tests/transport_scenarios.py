"""Scenarios over a process group of PyTorch (transport="torch"). test_ddp.py starts it on three
ranks."""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from ddp_support import main, make, raises, same_on_all_ranks, scenario, train
from thinreduce._rendezvous import choose_transport
from thinreduce._time_limit import TimeLimit

import thinreduce
from thinreduce import _agreement, _rendezvous


def connections() -> set[str]:
    """Returns the TCP sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@scenario
def means_have_the_same_bits_as_over_gloo():
    for spec in ("fp32", "dqsg", "topk", "powersgd", "gradiveq:warmup=1", "fft", "sketch"):
        bits = set()
        for transport in ("gloo", "torch"):
            # Small buckets: several are in flight at once.
            model, optimizer, state = make(spec, transport=transport)
            train(model, optimizer, 5)
            bits.add(same_on_all_ranks(model))
            assert state.error is None
            state.close()
        assert len(bits) == 1, spec


@scenario
def large_and_empty_messages_arrive():
    for rows in (1, 3000):
        model, _, state = make("fp32", net=nn.Linear(1000, rows), transport="torch")
        model(torch.ones(2, 1000) * (dist.get_rank() + 1)).sum().backward()
        assert (model.module.weight.grad == 4).all()  # 2 samples, and 2 is the mean of 1, 2, 3
        state.close()


@scenario
def an_error_on_one_rank_reaches_all():
    model, optimizer, state = make("topk", transport="torch")
    train(model, optimizer, 2)
    if dist.get_rank() == 1:
        state._connected().session.abandon("the disk is full")
    text = raises(
        RuntimeError, "rank 1 gave up: the disk is full", lambda: train(model, optimizer, 1)
    )
    assert "lost rank" not in text or dist.get_rank() != 1
    assert isinstance(state.error, thinreduce.LostPeer)
    assert state.state_dict()["step"] >= 2  # can still be saved
    state.close()


@scenario
def a_rank_that_has_left_is_named():
    model, optimizer, state = make("fp32", transport="torch")
    train(model, optimizer, 2)
    dist.barrier()
    if dist.get_rank() == 2:
        state.close()
    else:
        raises(RuntimeError, "rank 2", lambda: train(model, optimizer, 1))
        state.close()
    dist.barrier()


@scenario
def nothing_stays_open():
    model, optimizer, state = make("fp32", transport="torch")
    before = connections()
    train(model, optimizer, 2)
    assert len(connections() - before) >= dist.get_world_size() - 1
    dist.barrier()  # a rank that closes first closes the connections of the others, too
    state.close()
    dist.barrier()
    # Only the pair of sockets that watches for Ctrl-C may be new.
    assert len(connections() - before) <= 2, connections() - before


@scenario
def ranks_must_agree_on_the_transport():
    _, _, state = make(
        "fp32", transport="gloo" if dist.get_rank() == 1 else "torch", connect_timeout=10
    )
    text = "different transports: gloo on rank 1; torch on ranks 0, 2;"
    raises(thinreduce.Mismatch, text, state.connect)
    dist.barrier()


@scenario
def ranks_must_have_the_same_version():
    for transport in ("gloo", "torch"):
        _, _, state = make("fp32", transport=transport)
        own = _agreement.version
        _agreement.version = lambda: "0.1.7" if dist.get_rank() == 2 else "0.2.0"
        try:
            text = "different versions of thinreduce: 0.1.7 on rank 2; 0.2.0 on ranks 0, 1;"
            raises(thinreduce.Mismatch, text, state.connect)
        finally:
            _agreement.version = own
        dist.barrier()


@scenario
def a_rank_that_does_not_come_is_named_by_all():
    _, _, state = make("fp32", transport="torch", connect_timeout=1)
    if dist.get_rank() == 1:
        state.close()
    else:
        raises(thinreduce.Timeout, "rank 1 did not connect within 1 s", state.connect)
    dist.barrier()
    _rendezvous._connections[(0, 1, 2)] += dist.get_rank() == 1  # as the others count


@scenario
def the_time_to_connect_is_that_of_all_stages_together():
    own_agree, own_left = _rendezvous.agree, TimeLimit.left
    for transport in ("gloo", "torch"):
        _, _, state = make("fp32", transport=transport, connect_timeout=100)
        left = []

        def agree(*arguments, limit, **options):
            own_agree(*arguments, limit=limit, **options)
            limit._end -= 30  # as if it had taken that long
            left.clear()  # noqa: B023

        def note(limit):
            left.append(own_left(limit))  # noqa: B023
            return left[-1]  # noqa: B023

        _rendezvous.agree, TimeLimit.left = agree, note
        try:
            state.connect()
        finally:
            _rendezvous.agree, TimeLimit.left = own_agree, own_left
        assert len(left) == (1 if transport == "gloo" else 2) and max(left) <= 70, left
        dist.barrier()
        state.close()


@scenario
def encryption_is_never_dropped():
    os.environ["GLOO_DEVICE_TRANSPORT"] = "TCP_TLS"
    try:
        assert choose_transport("auto") == "torch"
        _, _, state = make("fp32", transport="gloo")
        raises(thinreduce.Unavailable, "TCP_TLS asks for encryption", state.connect)
        dist.barrier()
    finally:
        del os.environ["GLOO_DEVICE_TRANSPORT"]
    assert choose_transport("auto") == "gloo"


# The last one, because rank 0 now counts fewer connections than the others.
@scenario
def a_rank_0_that_does_not_come_is_named():
    _, _, state = make("fp32", connect_timeout=1)
    if dist.get_rank() > 0:
        raises(thinreduce.Timeout, "rank 0 did not connect within 1 s", state.connect)
    dist.barrier()


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    main()
