"""The examples as people run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

EXAMPLES = ranks.ROOT / "examples"


def test_the_lines_of_the_readme(tmp_path):
    pytest.importorskip("torch")
    readme = (ranks.ROOT / "README.md").read_text()
    script = tmp_path / "script.py"
    script.write_text(re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1))
    results = ranks.finish(ranks.start(script, 2, fresh=True))
    for code, _, err in results:
        assert code == 0, err
    ratio = float(results[0][1].split(" times fewer bytes")[0])
    assert 6 < ratio < 12, results[0][1]  # 3 of 32 bits per element


def test_the_examples_of_the_api_page(tmp_path):
    pytest.importorskip("torch")
    page = (ranks.ROOT / "docs" / "api.md").read_text()
    script = tmp_path / "script.py"
    script.write_text("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    for code, _, err in ranks.finish(ranks.start(script, 2, fresh=True)):
        assert code == 0, err


def test_numpy_allreduce():
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "numpy_allreduce.py"), "--ranks", "3", "--rows", "100"],
        check=False,
        capture_output=True,
        text=True,
        timeout=ranks.PATIENCE,
    )
    assert run.returncode == 0, run.stderr
    assert "same result everywhere: yes" in run.stdout


def test_numpy_needs_no_torch():
    code = (
        "import sys, thinreduce; "
        "thinreduce.encode([1.0] * 64, 'topk'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=ranks.PATIENCE)


def run_by_torchrun(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script on two ranks with the options of torchrun that the README recommends."""
    torch = pytest.importorskip("torch")
    readme = (ranks.ROOT / "README.md").read_text()
    options = re.search(r"^torchrun (.*) script\.py", readme, re.MULTILINE).group(1).split()
    if torch.__version__.startswith("1."):  # as the README says
        options += ["--redirects", "2", "--tee", "2"]
    port = f"--master_port={ranks.free_port()}"
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, port, str(script), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=ranks.PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_wrong_spec_is_seen_under_torchrun(tmp_path):
    readme = (ranks.ROOT / "README.md").read_text()
    script = tmp_path / "script.py"
    text = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    script.write_text(text.replace('"dqsg"', '"dqgs"'))
    run = run_by_torchrun(script)
    assert run.returncode != 0
    assert "BadSpec: " in run.stderr and "'dqgs'" in run.stderr, run.stdout + run.stderr


def test_ddp_mnist_by_torchrun():
    # fmt: off
    run = run_by_torchrun(
        EXAMPLES / "ddp_mnist.py",
        "--method", "dqsg:levels=7", "--samples", "6400", "--epochs", "1", "--batch", "32",
    )
    # fmt: on
    assert run.returncode == 0, run.stdout + run.stderr
    line = next(line for line in run.stdout.splitlines() if '"accuracy"' in line)
    result = json.loads(line[line.index("{") :])
    assert result["same_bits"] and result["accuracy"] > 85, result


def run_example(name: str, *arguments: str) -> dict[str, object]:
    """Runs an example on two ranks and returns its line of results."""
    pytest.importorskip("torch")
    results = ranks.finish(ranks.start(EXAMPLES / name, 2, *arguments, fresh=True))
    for code, _, err in results:
        assert code == 0, err
    return json.loads(results[0][1])


def test_ddp_cifar():
    # fmt: off
    result = run_example(
        "ddp_cifar.py",
        "--method", "dqsg", "--steps", "3", "--batch", "4",
        "--samples", "1000", "--test-images", "500",
    )
    # fmt: on
    assert result["same_bits"] and 0 <= result["accuracy"] <= 100, result
    assert result["ratio"] > 2, result  # of three steps, the first is sent uncompressed


@pytest.mark.parametrize("method", ["dqsg", "variance"])
def test_ddp_gpt(method):
    # fmt: off
    result = run_example(
        "ddp_gpt.py", "--method", method, "--steps", "12", "--batch", "4", "--test-windows", "32",
    )
    # fmt: on
    assert result["same_bits"], result
    assert result["loss"] < 4, result  # all characters alike would be 4.42
    assert result["ratio"] > 3, result


def test_a_run_that_crashes_and_resumes_ends_with_the_same_bits(tmp_path):
    example = EXAMPLES / "ddp_resume.py"
    weights = []
    for name, fails in (("whole", False), ("crashes", True), ("crashes", False)):
        fail_at = "25" if fails else "0"
        run = run_by_torchrun(example, "--folder", str(tmp_path / name), "--fail-at", fail_at)
        assert (run.returncode != 0) == fails, run.stdout + run.stderr
        assert ("rank 1 fails, as --fail-at asks" in run.stderr) == fails, run.stdout + run.stderr
        weights += re.findall(r"from step (\d+), weights (\w{16})", run.stdout)
    # Two ranks that run through, and two that go on from the checkpoint of step 20.
    assert [first for first, _ in weights] == ["1", "1", "21", "21"]
    assert len({bits for _, bits in weights}) == 1, weights


# Also while gradients are sent uncompressed, when buckets are those of DDP.
@pytest.mark.parametrize(("kill_at", "warmup_steps"), [(20, 1), (3, 10)])
def test_a_run_goes_on_when_a_rank_is_killed(kill_at, warmup_steps):
    pytest.importorskip("torch")
    options = ["--kill-at", str(kill_at), "--warmup-steps", str(warmup_steps)]
    command = [sys.executable, str(EXAMPLES / "ddp_elastic.py"), *options]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=ranks.PATIENCE
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"3 ranks go on after {kill_at} steps; old rank 1 lost, with all gradient" in run.stdout
    assert "new rank 2 joined" in run.stdout
    weights = re.findall(r"weights (\w{16}) after step 40", run.stdout)
    assert len(weights) == 3 and len(set(weights)) == 1, run.stdout
