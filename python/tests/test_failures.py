"""Kills a rank, and presses Ctrl-C while a rank hangs."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks

SCRIPT = Path(__file__).parent / "failing_ranks.py"


def wait_for_line(rank, text: str) -> None:
    while line := rank.stdout.readline():
        if text in line:
            return
    raise AssertionError(f"the rank did not print '{text}': {rank.stderr.read()}")


def is_running(rank) -> bool:
    """Returns whether a process has not been stopped by a signal."""
    assert rank.poll() is None, rank.stderr.read()
    return Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"


# "local": with local steps, in the middle of a round.
# "orphan": a process that the rank forked, such as a DataLoader's worker, outlives it.
@pytest.mark.parametrize(
    ("what", "transport", "victim"),
    [
        ("kill", "gloo", 2),
        ("orphan", "gloo", 2),
        ("kill", "torch", 2),
        ("kill", "torch", 1),
        ("kill", "torch", 0),
        ("local", "gloo", 1),
        ("local", "torch", 2),
    ],
)
def test_a_rank_that_is_killed_is_named_by_the_others(what, transport, victim):
    fresh = (what, transport, victim) in (("kill", "gloo", 2), ("kill", "torch", 0))
    started = ranks.start(SCRIPT, 3, what, str(victim), transport, fresh=fresh)
    finished = ranks.finish(started)
    assert finished.pop(victim)[0] == -signal.SIGKILL
    for code, out, err in finished:
        assert code == 4, err
        seconds = float(re.search(r"after ([\d.]+) s", out).group(1))
        assert seconds < ranks.PATIENCE / 2, out  # the timeout is PATIENCE
        assert f"rank {victim}" in out and "LostPeer" in out, out


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_a_rank_that_dies_in_the_middle_of_a_message_is_named(transport):
    started = ranks.start(SCRIPT, 3, "middle", "1", transport)
    try:
        while is_running(started[1]):
            time.sleep(0.1)
        time.sleep(2)
        started[1].kill()
        killed = time.monotonic()
        for code, out, err in ranks.finish([started[0], started[2]]):
            assert code == 4, err
            assert "rank 1" in out and "LostPeer" in out, out
        assert time.monotonic() - killed < ranks.PATIENCE / 4  # the patience is PATIENCE
    finally:
        for rank in started:
            rank.kill()
            rank.communicate()


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_a_rank_that_computes_for_long_is_waited_for(transport):
    for code, _out, err in ranks.finish(ranks.start(SCRIPT, 2, "busy", "0", transport)):
        assert code == 0, err


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_a_rank_that_comes_too_late_is_named_and_told(transport):
    finished = ranks.finish(ranks.start(SCRIPT, 3, "late", "1", transport))
    for rank, (code, out, err) in enumerate(finished):
        assert code == 4, err
        # One of the two that wait is the first to give up; it names rank 1.
        assert "rank 1" in out and ("Timeout" in out or "gave up: " in out), (rank, out)
    assert "gave up: " in finished[1][1], finished[1][1]
    if transport == "torch":
        assert "or itself waiting for such a rank" in finished[1][1], finished[1][1]


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_control_c_ends_a_rank_whose_peer_hangs(transport):
    started = ranks.start(SCRIPT, 2, "stop", "1", transport)
    try:
        wait_for_line(started[0], "running")
        time.sleep(0.5)
        started[0].send_signal(signal.SIGINT)
        [(code, out, err)] = ranks.finish(started[:1])
        # backward() raises first; KeyboardInterrupt follows when Python runs its signal handler.
        assert code in (1, -signal.SIGINT), out + err
        assert "rank 0 gave up: interrupted from the keyboard" in err, err
    finally:
        for rank in started:
            rank.kill()
            rank.communicate()
