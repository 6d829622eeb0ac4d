"""A few trials of every scenario of tests/chaos."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import ranks

CHAOS = ranks.ROOT / "tests" / "chaos"


def run(file: Path, count: int, *scenarios: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHAOS), "--count", str(count), "--file", str(file), *scenarios]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=ranks.PATIENCE, check=False
    )


# The scenarios that save train with the program, whose own tests kill it.
@pytest.mark.parametrize(
    ("scenarios", "count"),
    [
        (["kill", "kill-workers", "kill-torch", "stop", "cut", "clock"], 1),
        (["flip", "drop", "duplicate"], 2),
        (["steps", "steps-ddp", "sessions"], 40),
    ],
)
def test_nothing_hangs_and_no_mean_is_wrong(scenarios: list[str], count: int, tmp_path: Path):
    done = run(tmp_path / "results.json", count, *scenarios)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert sorted(results) == sorted(scenarios)
    assert all(trials and not any(one["failure"] for one in trials) for trials in results.values())


def test_a_run_goes_on_where_it_stopped(tmp_path: Path):
    file = tmp_path / "results.json"
    run(file, 1, "kill")
    first = json.loads(file.read_text())["kill"]
    run(file, 2, "kill")
    assert json.loads(file.read_text())["kill"][:1] == first
    again = run(file, 2, "kill")
    assert (again.returncode, again.stderr) == (0, "")


def test_a_wrong_mean_and_a_survivor_that_is_silent_are_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(CHAOS))
    from trial import judge
    from world import LastWords

    def verdict(*words: LastWords | None) -> str:
        said = dict(enumerate(words))
        return judge(said, began=1.0, culprit="lost rank 7", errors=["LostPeer"]).failure

    good = LastWords("LostPeer", "rank 0: lost rank 7: its connection closed", 1.5, 20)
    assert verdict(good, good) == ""
    assert "hangs" in verdict(good, None)
    assert "wrong means" in verdict(good, LastWords(good.error, good.text, 1.5, 20, 1))
    assert "lost rank 6" in verdict(good, LastWords("LostPeer", "rank 1: lost rank 6", 1.5))
    assert "Timeout" in verdict(good, LastWords("Timeout", good.text, 1.5))
    assert "done" in verdict(good, LastWords())


def test_the_state_beside_a_checkpoint_of_a_trainer_is_whole_or_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    import torch
    from thinreduce.huggingface import Compression

    def save(contents: object, file: Path) -> None:
        file.write_bytes(b"a part")
        raise KeyboardInterrupt

    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=5), args=SimpleNamespace(output_dir=str(tmp_path))
    )
    compression = Compression(trainer, "topk", {})
    compression.state = SimpleNamespace(has_state=True, state_dict=lambda: {"step": 5})
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    file = tmp_path / "checkpoint-5" / "thinreduce_rank0.pt"
    with monkeypatch.context() as broken:
        broken.setattr(torch, "save", save)
        with pytest.raises(KeyboardInterrupt):
            compression.save()
    assert not file.exists()
    compression.save()
    assert torch.load(file) == {"step": 5}
    assert list(file.parent.iterdir()) == [file]
