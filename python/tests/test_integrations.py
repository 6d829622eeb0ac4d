"""The examples for frameworks, on real text. `make test-integrations` runs it in an environment
that has them; elsewhere it is skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import ranks
from test_examples import EXAMPLES, run_by_torchrun


def result_of(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    line = next(line for line in run.stdout.splitlines() if '"same_bits"' in line)
    result: dict[str, Any] = json.loads(line[line.index("{") :])
    assert result["same_bits"], result
    return result


# All characters alike would be a loss of 4.42. Of 30 steps, one is sent uncompressed.
def check_training(result: dict[str, Any], steps: int) -> None:
    assert result["steps"] == steps, result
    assert result["loss"] < 3.6, result
    assert result["ratio"] > 4, result


def test_lightning(tmp_path):
    pytest.importorskip("lightning")

    def train(folder: str, epochs: int) -> dict[str, Any]:
        # Lightning starts the other ranks itself.
        # fmt: off
        command = [
            sys.executable, EXAMPLES / "lightning_gpt.py", "--folder", tmp_path / folder,
            "--method", "topk:density=0.05", "--steps", "10", "--batch", "4", "--epochs", epochs,
        ]
        # fmt: on
        run = subprocess.run(
            [str(word) for word in command],
            check=False,
            capture_output=True,
            text=True,
            timeout=ranks.PATIENCE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(ranks.free_port())},
        )
        return result_of(run)

    whole = train("whole", 3)
    check_training(whole, 30)
    assert train("stopped", 2)["weights"] != whole["weights"]
    assert train("stopped", 3)["weights"] == whole["weights"], "the resumed run differs"


def test_accelerate():
    pytest.importorskip("accelerate")
    run = run_by_torchrun(EXAMPLES / "accelerate_gpt.py", "--steps", "30", "--batch", "4")
    check_training(result_of(run), 30)


def test_trainer_of_hugging_face(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def train(folder: str, *more: str) -> dict[str, Any]:
        # fmt: off
        run = run_by_torchrun(
            EXAMPLES / "huggingface_gpt.py", "--folder", str(tmp_path / folder),
            "--method", "topk:density=0.05", "--steps", "30", "--batch", "4",
            "--save-every", "10", *more,
        )
        # fmt: on
        return result_of(run)

    whole = train("whole")
    check_training(whole, 30)
    check = train("stopped", "--stop-at", "20")
    assert check["steps"] == 20 and check["weights"] != whole["weights"]
    resumed = train("stopped")
    assert resumed["weights"] == whole["weights"], "the resumed run ends with other weights"
    # Without the residuals it would not.
    for file in (tmp_path / "stopped").glob("checkpoint-*/thinreduce_rank*.pt"):
        file.unlink()
    for file in (tmp_path / "stopped" / "checkpoint-30").glob("*"):
        file.unlink()
    (tmp_path / "stopped" / "checkpoint-30").rmdir()
    assert train("stopped")["weights"] != whole["weights"]
