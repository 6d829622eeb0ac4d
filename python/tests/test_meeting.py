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


def test_a_torch_that_can_not_encrypt_does_not_connect_in_clear_text(monkeypatch):
    # PyTorch reads the variable once per process. Without TLS it refuses; with TLS, there are no
    # such certificates.
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS")
    for name in ("PKEY", "CERT", "CA_FILE"):
        monkeypatch.setenv(f"GLOO_DEVICE_TRANSPORT_TCP_TLS_{name}", "/nowhere")
    program = """
import torch.distributed as dist, thinreduce
from thinreduce._rendezvous import choose_transport
from thinreduce._store import StoreView
from thinreduce._torch_messages import Messages
assert choose_transport("auto") == "torch"
try:
    Messages(StoreView(dist.HashStore(), "one"), 0, 1, timeout=5)
except thinreduce.Unavailable as error:
    print("refused:", error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=ranks.PATIENCE,
        check=False,
    )
    assert "refused: rank 0: PyTorch" in run.stdout, run.stdout + run.stderr
