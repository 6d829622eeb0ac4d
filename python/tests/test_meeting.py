"""How the engines of all ranks connect, and what they leave behind."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks
import torch

import thinreduce
from thinreduce import _listener, _torch_messages

SCRIPT = Path(__file__).parent / "meeting_ranks.py"


def test_no_socket_stays_open(monkeypatch):
    # An exception while objects are destroyed is only printed, so look for its text. Python reads
    # the variable when it starts, and destroys objects when it ends.
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    for code, out, err in ranks.finish(ranks.start(SCRIPT, 2, fresh=True)):
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
    store = str(tmp_path / "store")
    started = [
        ranks.start_rank(SCRIPT, store, str(rank), "2", environment=env) for rank in range(2)
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


# 127.0.0.1 and ::1, as /proc/net/tcp has them.
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_ranks_without_a_process_group_listen_only_where_others_need_it(host):
    script = SCRIPT.parent / "torch_meeting_ranks.py"
    for rank, (code, out, err) in enumerate(ranks.finish(ranks.start(script, 3, host))):
        assert code == 0 and "listens [" in out, err
        places = ast.literal_eval(out.partition("listens ")[2])
        if torch.__version__.startswith("1."):
            # It can't be given a socket for its store, and listens for nothing else by now.
            assert len(places) == (rank == 0), f"rank {rank}: {places}"
            continue
        assert places, "PyTorch listens for its connections"
        assert all(address in LOOPBACK for address, _ in places), f"rank {rank}: {places}"


def test_the_listener_takes_one_address_if_the_name_stands_for_one(monkeypatch):
    for host, place in (("127.0.0.1", "127.0.0.1"), ("127.0.0.7", "127.0.0.7")):
        with _listener.listen_for_ranks(host, ranks.free_port()) as found:
            assert found.getsockname()[0] == place
    # A name that stands for a loopback address here, and an address that is translated on the way:
    # other machines use another one.
    monkeypatch.setattr(
        _listener, "_resolve", lambda _, port: [(socket.AF_INET, ("127.0.1.1", port))]
    )
    with _listener.listen_for_ranks("here", ranks.free_port()) as found:
        assert found.getsockname()[0] in ("::", "0.0.0.0")
    assert _listener.address_towards("here") is None
    monkeypatch.undo()
    port = ranks.free_port()
    with _listener.listen_for_ranks("192.0.2.1", port) as found:
        assert found.getsockname()[0] in ("::", "0.0.0.0")
        with pytest.raises(thinreduce.Unavailable, match=f"rank 0: can't listen on port {port}: "):
            _listener.listen_for_ranks("192.0.2.1", port)
    assert _listener.address_towards("127.0.0.1") == "127.0.0.1"


def test_the_time_to_connect_is_that_of_all_stages_together(monkeypatch):
    given = []

    def record(kind):
        return lambda *_, timeout, **__: given.append((kind, timeout))

    def agree(*_, limit, **__):
        given.append(("agree", limit.left()))
        limit._end -= 30  # as if it had taken that long

    monkeypatch.setattr(_torch_messages, "agree", agree)
    monkeypatch.setattr(_torch_messages, "Messages", record("messages"))
    monkeypatch.setattr(_torch_messages._core, "connect_torch", record("link"))
    where = ("127.0.0.1", ranks.free_port())
    _torch_messages.connect_at(0, 1, where, interface="", timeout=100, link="", secret=None)
    stages, left = zip(*given)
    assert stages == ("agree", "messages", "link")
    assert left[0] <= 100 and all(one <= 70 for one in left[1:]), left
