"""The figures of `make claims` that are computed from recorded gradients, and its verdicts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Union

import numpy as np
import pytest
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))
from claims.claim import FAILS, HOLDS, IN_PART, NOT_YET, Context
from claims.dqsg import levels
from claims.dqsg.nesting import correlation
from claims.dqsg.rounding import rounding_errors
from claims.fft import diminishing
from claims.fft.convergence import converges
from claims.gradiveq import aggregation, equal_bytes
from claims.gradiveq.slices import drift, spectra
from claims.noise import Gap
from claims.page import CLAIMS, shown
from claims.page import write as write_page
from claims.quoted import Quoted
from claims.recording import Recording
from claims.rows import Row, committed, keep, measured_here, newest
from claims.sketch import accuracy
from claims.trained import PLAN, UNTRAINED, Trained
from claims.training_table import training_table
from claims.variance import narrow, ratio

SHAPE = (32, 16, 6, 6)  # 18,432 elements, slices of 256


def write(folder: Path, gradients: list[list[NDArray[Any]]]) -> Recording:
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

    def gradient() -> NDArray[Any]:
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

    def gradient(step: int) -> NDArray[Any]:
        slices = random.standard_normal((72, 4)) @ (before if step < 14 else after)
        cut: NDArray[Any] = slices.reshape(32, 6, 6, 16)  # the order "channel"
        return cut.transpose(0, 3, 1, 2)

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
    measured: Any = {3: 0.5}  # numbers as keys become strings in the file
    keep(tmp_path, "one", measured)
    assert measured_here(tmp_path, ["one", "two"]) == {"one": old}
    keep(tmp_path, "one", {"3": 0.25})
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


# The verdicts on trainings, with invented results.

# In percent by setting: one seed or the first seeds.
Accuracies = dict[str, Union[float, tuple[float, ...]]]


def trained(accuracies: Accuracies, fewer: dict[str, float] | None = None) -> Trained:
    """Returns trainings that send so many times fewer bytes than fp32 (4 if not given)."""
    rows = []
    for setting, values in accuracies.items():
        times = 1 if "fp32" in setting else (fewer or {}).get(setting, 4)
        for plan, percent in zip(PLAN[setting], np.atleast_1d(values)):
            accuracy = float(percent) / 100
            rows.append(
                {
                    **asdict(plan),
                    "accuracy": accuracy,
                    "bytes_sent": 1e9 / times,
                    "ratio": times,
                    "steps": 1000,
                    "curve": [[100 * i, accuracy * (0.8 + 0.02 * i), 1.0] for i in range(1, 11)],
                    "finished": f"2026-01-0{plan.seed}",
                }
            )
    return Trained(rows)


def context(folder: Path, known: Trained) -> Context:
    results = Path(__file__).parents[2] / "docs" / "results" / "results.json"
    return Context(folder, known, Quoted.read(results))


def test_without_trainings_nothing_is_shown_and_all_are_missing(tmp_path: Path) -> None:
    known = trained({})
    claims = [claim for claim in CLAIMS if claim.trainings]
    assert len(claims) == 8
    for claim in claims:
        entry = shown(claim, None, context(tmp_path, known))
        assert entry.verdict == NOT_YET
        assert UNTRAINED in entry.figure
        assert not entry.charts
    assert known.missing(["resnet20-variance", "resnet20-variance-full0"]) == tuple(
        f'make reproduce-long ONLY="resnet20-fp32-adam-{seed} resnet20-variance-{seed} '
        f'resnet20-variance-full0-{seed}"'
        for seed in (1, 2, 3)
    )


def test_one_seed_is_said_and_only_the_others_are_missing(tmp_path: Path) -> None:
    known = trained({"resnet20-fp32-adam": 60, "resnet20-variance": 59.4})
    entry = narrow.show({}, context(tmp_path, known))
    assert entry.verdict == IN_PART
    assert "-0.6 points (noise) at 4.0x fewer bytes; one seed was trained" in entry.figure
    assert known.missing(["resnet20-variance"]) == tuple(
        f'make reproduce-long ONLY="resnet20-fp32-adam-{seed} resnet20-variance-{seed}"'
        for seed in (2, 3)
    )


def test_three_seeds_have_a_mean_a_spread_and_less_noise(tmp_path: Path) -> None:
    known = trained({"resnet9-fp32": (88, 88.5, 87), "resnet9-dqsg": (87.4, 88, 86.6)})
    gap = known.gap("resnet9-dqsg")
    assert gap is not None
    assert gap.mean == pytest.approx(-0.5)
    assert not gap.is_noise
    assert Gap((-0.5,)).is_noise
    assert str(Gap((-0.5,))) == "-0.5 points (noise)"
    assert str(gap) == "-0.5 points (not clearly more than noise)"
    assert str(Gap((-0.9,) * 3)) == "-0.9 points"
    table = training_table(known, ["resnet9-dqsg", "resnet9-dqsg-3"])
    assert "| `fp32` | 1, 2, 3 | 87.83 % (87.00 to 88.50) |  |  | 1/1.0 |" in table
    assert (
        "| `dqsg` | 1, 2, 3 | 87.33 % (86.60 to 88.00) | -0.50 (-0.60 to -0.40) | 4.0x |" in table
    )
    assert "ended on 2026-01-03" in table
    assert known.missing(["resnet9-dqsg"]) == ()


def test_without_fp32_of_the_same_seed_nothing_is_compared(tmp_path: Path) -> None:
    known = trained({"resnet20-fp32-adam": (), "resnet20-variance": (60, 60, 60)})
    entry = narrow.show({}, context(tmp_path, known))
    assert entry.verdict == NOT_YET
    assert UNTRAINED in entry.figure
    assert "60.00 % (60.00 to 60.00) | fp32 is not trained |" in entry.text
    assert known.missing(["resnet20-variance"]) == tuple(
        f'make reproduce-long ONLY="resnet20-fp32-adam-{seed}"' for seed in (1, 2, 3)
    )


def test_a_result_of_another_plan_is_missing() -> None:
    rows = list(trained({"resnet9-fp32": 88, "resnet9-fft": 88}).rows.values())
    rows[1] = {**rows[1], "spec": "fft:theta=0.8"}
    assert Trained(rows).missing(["resnet9-fft"])[0] == 'make reproduce-long ONLY="resnet9-fft-1"'


@pytest.mark.parametrize(
    ("losses", "seeds", "verdict"),
    [
        ({}, 3, NOT_YET),
        ({"paper-4x": 0.3, "paper-8x": 1.3}, 3, HOLDS),
        ({"paper-4x": 0.3, "paper-8x": 1.3}, 2, IN_PART),
        ({"paper-4x": 0.5, "paper-8x": 1.3}, 3, IN_PART),  # more than noise
        ({"paper-4x": 0.3}, 3, IN_PART),
        ({"paper-4x": 0.9, "paper-8x": 1.3}, 3, IN_PART),  # one part clearly lost
        ({"paper-4x": 0.9, "paper-8x": 1.9}, 3, FAILS),
        ({"paper-4x": 0.9, "paper-8x": 1.9, "4x": 0.1, "8x": 0.1}, 3, IN_PART),
        ({"4x": 0.1, "8x": 0.1}, 3, IN_PART),  # not the paper's algorithm
        ({"4x": 1.3}, 1, IN_PART),
        ({"4x": 1.5}, 1, FAILS),
    ],
)
def test_the_verdict_on_the_accuracy_of_sketches(
    losses: dict[str, float], seeds: int, verdict: str
) -> None:
    accuracies: Accuracies = {"resnet9-fp32": (88.0,) * seeds}
    accuracies.update({f"resnet9-sketch-{k}": (88 - one,) * seeds for k, one in losses.items()})
    fewer = {name: 7.96 for name in accuracies if name.endswith("8x")}
    assert accuracy.judged(trained(accuracies, fewer)) == verdict


def test_a_sketch_that_sends_too_many_bytes_only_refutes() -> None:
    bytes_sent = {"resnet9-sketch-paper-4x": 3.9}
    good: Accuracies = {"resnet9-fp32": (88, 88, 88), "resnet9-sketch-paper-4x": (88, 88, 88)}
    assert accuracy.judged(trained(good, bytes_sent)) == NOT_YET
    bad: Accuracies = {**good, "resnet9-sketch-paper-4x": (86, 86, 86)}
    assert accuracy.judged(trained(bad, bytes_sent)) == FAILS


@pytest.mark.parametrize(
    ("percents", "verdict"),
    [
        ((None, None, (88, 88, 88), None, None), NOT_YET),
        (((86, 86, 86), (87, 87, 87), (88, 88, 88), (88, 88, 88), (87.8, 87.8, 87.8)), HOLDS),
        (((86, 86), (87, 87), (88, 88), (88, 88), (88, 88)), IN_PART),  # two seeds
        (((88, 88, 88),) * 5, IN_PART),  # no loss
        (((86, 86, 86), None, (88, 88, 88), None, None), IN_PART),
        ((None, (88.9, 88.9, 88.9), (88, 88, 88), None, None), FAILS),
    ],
)
def test_the_verdict_on_levels(
    percents: tuple[tuple[float, ...] | None, ...], verdict: str
) -> None:
    accuracies: Accuracies = {"resnet9-fp32": (88, 88, 88)}
    given = zip(levels.SETTINGS, percents)
    accuracies.update({setting: one for setting, one in given if one is not None})
    known = trained(accuracies, dict(zip(levels.SETTINGS, (20, 15, 10, 7, 5))))
    assert levels.judged(known) == verdict


def test_levels_that_do_not_save_bytes_are_refuted() -> None:
    accuracies: Accuracies = {"resnet9-fp32": 88, "resnet9-dqsg-3": 86, "resnet9-dqsg": 88}
    assert levels.judged(trained(accuracies)) == FAILS


@pytest.mark.parametrize(
    ("percents", "times", "verdict"),
    [
        ((59.8, 59.8, 59.8), 10, HOLDS),
        ((59.8, 59.8, 59.8), 9, IN_PART),
        ((59.4, 59.4, 59.4), 10, IN_PART),
        ((59, 59, 59), 10, NOT_YET),  # the other settings may still do it
    ],
)
def test_the_verdict_on_narrow_layers(
    percents: tuple[float, ...], times: float, verdict: str
) -> None:
    base: Accuracies = {"resnet20-fp32-adam": (60, 60, 60)}
    assert (
        narrow.judged(trained({**base, narrow.PAPER: percents}, {narrow.PAPER: times})) == verdict
    )
    chosen = trained({**base, narrow.CHOSEN: percents}, {narrow.CHOSEN: times})
    assert narrow.judged(chosen) == (IN_PART if verdict == HOLDS else verdict)
    every = trained({**base, **dict.fromkeys(narrow.SETTINGS, (59, 59, 59))})
    assert narrow.judged(every) == FAILS


@pytest.mark.parametrize(
    ("percents", "times", "verdict"),
    [
        ((87.5, 87.5, 87.5), 100, HOLDS),
        ((87.4, 87.4, 87.4), 100, IN_PART),
        ((87.5, 87.5), 100, IN_PART),
        ((87.5, 87.5, 87.5), 30, IN_PART),
        ((87.5, 87.5, 87.5), 29, FAILS),
        ((87, 87, 87), 100, FAILS),
    ],
)
def test_the_verdict_on_high_ratios(
    percents: tuple[float, ...], times: float, verdict: str
) -> None:
    one = ratio.DEFAULT
    known = trained({ratio.BASELINE: (88, 88, 88), one: percents}, {one: times})
    assert ratio.judged(known, one) == verdict


@pytest.mark.parametrize(
    ("schedule", "constant", "verdict"),
    [
        ((88, 88, 88), (87, 87, 87), HOLDS),
        ((88, 88, 88), (87.7, 87.7, 87.7), IN_PART),
        ((88, 88, 88), (), IN_PART),
        ((88,), (86,), IN_PART),
        ((87, 87, 87), (86, 86, 86), FAILS),
        ((), (86, 86, 86), NOT_YET),
    ],
)
def test_the_verdict_on_a_schedule(
    schedule: tuple[float, ...], constant: tuple[float, ...], verdict: str
) -> None:
    setting = diminishing.SCHEDULES["linear"]
    base = {"resnet9-fp32": (88.0, 88.0, 88.0)}
    known = trained({**base, setting: schedule, diminishing.CONSTANT: constant})
    assert diminishing.part(known, setting) == verdict


@pytest.mark.parametrize(
    ("later", "verdict"), [(0, HOLDS), (100, HOLDS), (200, IN_PART), (300, FAILS)]
)
def test_a_training_that_is_as_accurate_may_converge_too_late(later: int, verdict: str) -> None:
    # fp32 reaches 95 % of its accuracy at step 500.
    curve = [[100 * i, 0.88 if i >= 5 else 0.5, 1.0] for i in range(11)]
    rows = list(trained({"resnet9-fp32": (88, 88, 88), "resnet9-fft": (88, 88, 88)}).rows.values())
    for row in rows:
        shift = later if row["name"].startswith("resnet9-fft") else 0
        row["curve"] = [[step + shift, accuracy, 1.0] for step, accuracy, _ in curve]
    assert converges(Trained(rows), "resnet9-fft") == verdict


def test_the_verdict_on_the_aggregation_needs_time_and_accuracy() -> None:
    def cycles(speedup: float) -> dict[str, Any]:
        return {"a link": {aggregation.OURS: {"cycle": {"speedup": speedup}}}}

    three = Gap((-0.3, -0.3, -0.3))
    assert aggregation.judged(cycles(5.5), 2, three) == HOLDS
    assert aggregation.judged(cycles(4.5), 2, three) == FAILS
    assert aggregation.judged(cycles(5.5), 1.5, three) == FAILS
    assert aggregation.judged(cycles(5.5), 2, Gap((-0.9, -0.9, -0.9))) == FAILS
    assert aggregation.judged(cycles(5.5), 2, Gap((-0.3,))) == IN_PART
    assert aggregation.judged({}, 2, three) == IN_PART
    assert aggregation.judged(cycles(5.5), 2, None) == NOT_YET


def test_the_verdict_on_equal_bytes_needs_speed_and_a_combined_training() -> None:
    accuracies: Accuracies = dict.fromkeys(("resnet9-fp32", *equal_bytes.SETTINGS), (88, 88, 88))
    known = trained(accuracies, {equal_bytes.COMPOSED: 10})
    assert equal_bytes.judged(1.5, known) == HOLDS
    assert equal_bytes.judged(1.4, known) == IN_PART
    assert equal_bytes.judged(1.0, known) == IN_PART
    assert equal_bytes.judged(None, known) == IN_PART
    assert equal_bytes.judged(1.0, trained(accuracies)) == FAILS  # no fewer bytes than alone
    assert equal_bytes.judged(None, trained(accuracies)) == NOT_YET  # one part cannot refute
    assert equal_bytes.judged(1.5, trained({})) == NOT_YET


def test_the_page_names_dates_and_what_is_missing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    rows = trained({"resnet20-fp32-adam": 60, "resnet20-variance": 58}).rows.values()
    (results / "long.json").write_text(json.dumps({"trainings": list(rows)}))
    quoted = Path(__file__).parents[2] / "docs" / "results" / "results.json"
    (results / "results.json").write_text(quoted.read_text())
    timed = {"batch": 1, "backward_seconds": 1, "with_second_moment_seconds": 1.05}
    timed.update(added_to_backward=0.05, added_to_step=0.02)
    row = Row("2026-01-02", "another CPU, 2 cores", {"resnet9": timed})
    text = write_page(tmp_path / "out", {"variance-cost-of-moments": row}, results).read_text()
    assert text.count("Measured on 2026-01-02: another CPU, 2 cores.") == 1
    assert "`variance` -2.0 points at 4.0x fewer bytes; one seed was trained" in text
    assert 'ONLY="resnet20-variance-full0-1 resnet20-variance-full512-1"' in text
    assert "resnet20-variance-1" not in text
    assert committed(tmp_path / "out" / "claims" / "results.json") == {
        "variance-cost-of-moments": row
    }
