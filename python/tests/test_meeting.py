"""How the engines of all ranks connect, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks

import thinreduce

SCRIPT = Path(__file__).parent / "meeting_ranks.py"


def test_no_socket_stays_open(monkeypatch):
    # An exception while objects are destroyed is only printed, so look for its text.
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    for code, out, err in ranks.finish(ranks.start(SCRIPT, 2)):
        assert code == 0 and "done" in out, err
        assert "ResourceWarning" not in err, err


def test_the_watch_for_control_c_closes_its_sockets():
    # The first function that is registered is called last.
    program = """
import atexit
from thinreduce._interrupts import watch
ends = []
atexit.register(lambda: print([end.fileno() for end in ends]))
watch.install()
ends += [watch._reader, watch._writer]
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=ranks.PATIENCE, check=False
    )
    assert done.stdout == "[-1, -1]\n", done.stdout + done.stderr
    assert done.stderr == ""


def test_ranks_meet_without_master_addr(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MASTER_")}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "store"), str(rank), "2"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for code, out, err in ranks.finish(started):
        assert code == 0 and "done" in out, err


def test_encryption_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS")
    with pytest.raises(thinreduce.Unavailable, match="TCP_TLS asks for encryption"):
        thinreduce.connect(0, 2, f"127.0.0.1:{ranks.free_port()}")
