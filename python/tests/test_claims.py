"""The figures of `make claims` that are computed from recorded gradients, and its verdicts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from claims.dqsg.nesting import correlation
from claims.dqsg.rounding import rounding_errors
from claims.gradiveq.slices import drift, spectra
from claims.recording import Recording
from claims.rows import Row, committed, keep, measured_here, newest

SHAPE = (32, 16, 6, 6)  # 18,432 elements, slices of 256


def write(folder: Path, gradients: list[list[np.ndarray]]) -> Recording:
    """Writes gradients[step][rank] as `thinreduce train --save-gradients` does, after a bias."""
    tensors = [{"name": "bias", "shape": [5]}, {"name": "conv", "shape": list(SHAPE)}]
    records = []
    for step, ranks in enumerate(gradients, 1):
        for rank, values in enumerate(ranks):
            file = f"step-{step}-rank-{rank}.f32"
            np.concatenate([np.ones(5), values.ravel()]).astype("<f4").tofile(folder / file)
            records.append({"file": file, "step": step, "rank": rank, "bucket": 3})
    buckets = [{"id": 3, "elements": 5 + values.size, "tensors": tensors}]
    found = {"ranks": len(gradients[0]), "buckets": buckets, "records": records}
    (folder / "gradients.json").write_text(json.dumps(found))
    return Recording(folder, "")


def test_slices_in_two_directions_have_two_components(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    directions = random.standard_normal((2, 256))

    def gradient() -> np.ndarray:
        # Slices follow one another in the paper's order (height, width, in, out).
        slices = random.standard_normal((72, 2)) @ directions
        return slices.reshape(6, 6, 16, 32).transpose(3, 2, 0, 1)

    recording = write(tmp_path, [[gradient(), gradient()] for _ in range(24)])
    [row] = spectra(recording)
    assert row["slice"] == 256
    assert row["orders"]["paper"]["d99"] == 2
    assert row["orders"]["paper"]["lost"] == pytest.approx(0, abs=1e-6)
    assert row["orders"]["row"]["d90"] > 20
    assert row["orders"]["shuffled"]["lost"] > 0.5


def test_the_loss_of_an_old_basis_grows_when_the_directions_change(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    before, after = random.standard_normal((2, 4, 256))

    def gradient(step: int) -> np.ndarray:
        slices = random.standard_normal((72, 4)) @ (before if step < 14 else after)
        return slices.reshape(32, 6, 6, 16).transpose(0, 3, 1, 2)  # the order "channel"

    recording = write(tmp_path, [[gradient(step)] for step in range(28)])
    [row] = drift(recording)
    assert row["old"][0] > 0.5  # the first step after the change
    assert row["old"][-1] > 0.5
    assert row["new"][-1] == pytest.approx(0, abs=1e-6)


def test_the_correlation_of_ranks_is_that_of_their_common_part(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    common = random.standard_normal(SHAPE)
    ranks = [common + random.standard_normal(SHAPE) for _ in range(3)]
    [row] = correlation(write(tmp_path, [ranks]))
    assert row["pair"] == pytest.approx(0.5, abs=0.03)  # four deviations


def test_the_errors_of_dqsg_are_uniform_and_those_of_qsgd_are_not(tmp_path: Path) -> None:
    recording = write(tmp_path, [[np.random.default_rng(4).standard_normal(SHAPE)]])
    errors = rounding_errors(recording, "dqsg:collective=gather,levels=7", 1)
    assert errors["largest"] < 0.501
    assert errors["variance"] == pytest.approx(1 / 12, rel=0.05)
    assert errors["ks"] < 1.63 / errors["elements"] ** 0.5  # 1 %
    others = rounding_errors(recording, "qsgd:collective=gather,bits=4", 1)
    assert others["size_correlation"] > 0.2


def test_a_row_keeps_its_date_until_its_result_changes(tmp_path: Path) -> None:
    old = Row("2026-01-02", "a CPU, 2 cores", {"3": 0.5})
    (tmp_path / "one.json").write_text(json.dumps(asdict(old)))
    keep(tmp_path, "one", {3: 0.5})
    assert measured_here(tmp_path, ["one", "two"]) == {"one": old}
    keep(tmp_path, "one", {3: 0.25})
    found = measured_here(tmp_path, ["one"])["one"]
    assert found.found == {"3": 0.25}
    assert found.date > old.date


def test_a_row_of_another_machine_is_kept_until_a_later_one_is_measured(tmp_path: Path) -> None:
    names = ("kept", "measured", "stale")
    elsewhere = {name: Row("2026-01-02", "another CPU", {"from": name}) for name in names}
    results = tmp_path / "results.json"
    assert committed(results) == {}
    results.write_text(json.dumps({name: asdict(row) for name, row in elsewhere.items()}))
    here = {
        "measured": Row("2026-01-02", "this CPU", {}),
        "stale": Row("2026-01-01", "this CPU", {}),
        "new": Row("2026-01-01", "this CPU", {}),
    }
    rows = newest(committed(results), here)
    assert rows == {**elsewhere, "measured": here["measured"], "new": here["new"]}
