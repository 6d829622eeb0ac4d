"""A rank that is killed, or leaves, and one that joins: the others go on without a restart."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks

SCRIPT = Path(__file__).parent / "elastic_ranks.py"


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
