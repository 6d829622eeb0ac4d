"""A rank that is killed, or leaves, and one that joins: the others go on without a restart."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks
import torch
from thinreduce._new_world import name_of_meeting
from thinreduce._store import StoreView
from thinreduce._time_limit import TimeLimit

import thinreduce

SCRIPT = Path(__file__).parent / "elastic_ranks.py"


# A rank that asked and never came back, as often as this: those who come later must not wait for
# it, or meet in two places.
@pytest.mark.parametrize("gone", [{}, {1: 1}, {0: 1}, {0: 2, 1: 1, 2: 3}])
def test_ranks_meet_again_in_one_store(gone):
    store = StoreView(torch.distributed.HashStore(), "test")
    for rank, times in gone.items():
        for _ in range(times):
            try:
                name_of_meeting(store, rank, 3, TimeLimit(0))
            except thinreduce.Timeout:
                assert rank > 0
    names: set[str] = set()
    for _ in range(2):
        with ThreadPoolExecutor(3) as threads:
            meet = [
                threads.submit(name_of_meeting, store, rank, 3, TimeLimit(60)) for rank in range(3)
            ]
            found = {one.result() for one in meet}
        assert len(found) == 1  # all at one place
        assert not found & names  # which no earlier meeting had
        names |= found


@pytest.mark.parametrize("transport", ["gloo", "torch"])
@pytest.mark.parametrize("what", ["kill", "leave"])
def test_the_others_go_on_and_a_new_rank_joins(what, transport):
    second_port = str(ranks.free_port())
    started = ranks.start(SCRIPT, 3, what, transport, second_port)
    environment = {
        **os.environ,
        "RANK": "2",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    joiner = ranks.start_rank(SCRIPT, "join", transport, second_port, environment=environment)
    *finished, joined = ranks.finish([*started, joiner])
    code, _, err = finished.pop(1)
    assert code == (-signal.SIGKILL if what == "kill" else 0), err
    hashes = set()
    for code, out, err in [*finished, joined]:
        assert code == 0, err
        hashes.add(out.rpartition("parameters ")[2])
    assert len(hashes) == 1  # all three have the same bits, in every step
    fate = "lost, with all gradient" if what == "kill" else "left and handed over the gradient"
    for _, out, _ in finished:
        assert f"3 ranks go on after 5 steps; old rank 1 {fate} that was not sent yet" in out, out
        assert "new rank 2 joined" in out, out
