"""Forked ranks are what new processes would be, and have imported torch already."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks


def script(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text)
    return file


def test_a_forked_rank_has_one_thread_no_connection_and_torch(tmp_path):
    text = """
import os, stat, sys
print("torch" in sys.modules, "thinreduce.ddp" in sys.modules, len(os.listdir("/proc/self/task")))
def is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
print([fd for fd in range(1000) if is_socket(fd)])
print(sys.argv[1:], __name__, os.environ["RANK"], os.environ["OMP_NUM_THREADS"])
"""
    started = ranks.start(script(tmp_path, text), 2, "a")
    for rank, (code, out, err) in enumerate(ranks.finish(started)):
        assert (code, err) == (0, "")
        assert out.splitlines() == ["True True 1", "[]", f"['a'] __main__ {rank} 1"]


@pytest.mark.parametrize("fresh", [False, True])
def test_the_end_of_a_rank_is_reported(fresh, tmp_path):
    text = """
import atexit, os, signal, sys
atexit.register(print, "at exit")
rank = int(os.environ["RANK"])
if rank == 1:
    sys.exit(3)
if rank == 2:
    raise KeyError("lost key")
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
print("x" * 300_000)
"""
    finished = ranks.finish(ranks.start(script(tmp_path, text), 4, fresh=fresh))
    assert [code for code, _, _ in finished] == [0, 3, 1, -signal.SIGKILL]
    assert [out[-8:] for _, out, _ in finished] == ["at exit\n"] * 3 + [""]
    assert len(finished[0][1]) > 300_000
    assert "KeyError: 'lost key'" in finished[2][2]


def test_a_forked_rank_that_hangs_is_killed(tmp_path):
    [rank] = ranks.start(script(tmp_path, "import time; time.sleep(1000)"), 1)
    with pytest.raises(subprocess.TimeoutExpired):
        rank.communicate(timeout=0.1)
    assert rank.poll() is None
    rank.kill()
    assert rank.communicate() == ("", "")
    assert rank.returncode == -signal.SIGKILL
