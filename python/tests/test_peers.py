"""The selection, resume logic, figures and page of `make peers`; nothing is trained."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import namespaces
from peers import contenders as plan
from peers import figures, page, verdicts
from peers import measure as ranks
from peers.__main__ import Progress, selected
from peers.contenders import BF16, BY_NAME, COMPUTE, DDP, Part
from peers.store import Store
from scripts import page_width

TARGET_STEP = plan.TARGET_AT * plan.STEPS
ROOT = Path(__file__).parents[2]
OURS, LOCAL = BY_NAME["thinreduce dqsg"], BY_NAME["DiLoCo int8"]


def options(**given: object) -> argparse.Namespace:
    empty = {"only": "", "links": "", "seeds": "", "workloads": "", "no_times": False}
    return argparse.Namespace(**{**empty, **given})


def choose(**given: object) -> list[Part]:
    return selected(argparse.ArgumentParser(), options(**given))


def trained(steps: int, every: int, rate: float) -> dict[str, object]:
    """A curve whose loss falls by `rate` per step from 4."""
    return {"curve": [[step, 4 - rate * step] for step in range(0, steps + 1, every)]}


def timed(seconds: float) -> dict[str, object]:
    return {"step_seconds": seconds, "bytes_per_step": 1e6, "memory_mb": 300.0, "notes": {}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Results in which ours has steps of half the time, and needs a fifth more of them."""
    store = Store(tmp_path / "docs" / "peers" / "results.json")
    for seed in (1, 2):
        store.add(Part("gpt", DDP, "", seed), trained(plan.STEPS, 20, 0.01))
        store.add(Part("gpt", BF16, "", seed), trained(plan.STEPS, 20, 0.01))
        store.add(Part("gpt", OURS, "", seed), trained(plan.STEPS, 20, 0.01 / 1.2))
    store.add(Part("gpt", LOCAL, "", 1), trained(2 * plan.STEPS, 30, 0.001))
    store.add(Part("gpt", COMPUTE, "loopback"), timed(0.1))
    for one, seconds in ((DDP, 0.8), (BF16, 0.4), (OURS, 0.2), (LOCAL, 0.1)):
        store.add(Part("gpt", one, "100mbit"), timed(seconds))
    for one, seconds in ((DDP, 0.1), (BF16, 0.11), (OURS, 0.125)):
        store.add(Part("gpt", one, "loopback"), timed(seconds))
    return store


def test_all_parts_have_a_name_of_their_own() -> None:
    names = [part.name for part in plan.parts()]
    assert len(names) == len(set(names))


def test_losses_of_the_first_seed_come_first_and_times_last() -> None:
    parts = choose(workloads="gpt")
    assert [part.seed for part in parts] == sorted(
        (part.seed for part in parts), key=lambda seed: seed or 9
    )
    assert {part.link for part in parts if part.contender is DDP and part.seed} == {""}


def test_only_auto_is_trained_on_every_link() -> None:
    parts = [part for part in choose(workloads="gpt", seeds="1", no_times=True) if part.link]
    assert {part.contender.name for part in parts} == {"thinreduce auto"}
    assert [part.link for part in parts] == list(plan.LINKS)


def test_the_options_select_parts() -> None:
    parts = choose(only="DDP; DDP bf16", links="20mbit", seeds="2", workloads="resnet")
    assert [part.name for part in parts] == [
        "resnet, DDP, seed 2",
        "resnet, DDP bf16, seed 2",
        "resnet, DDP, 20mbit, time",
        "resnet, DDP bf16, 20mbit, time",
    ]
    assert [part.seed for part in choose(only="DDP", seeds="none", links="1gbit")] == [0, 0]


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        choose(only="DPP")
    assert "there is no contender 'DPP'" in capsys.readouterr().err


def test_a_result_is_on_disk_at_once_and_found_again(store: Store) -> None:
    again = Store(store.file)
    assert again.found(Part("gpt", OURS, "100mbit")) == timed(0.2)
    assert again.found(Part("gpt", OURS, "1gbit")) is None


def test_a_result_of_another_request_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part("gpt", OURS, "100mbit")
    monkeypatch.setattr(plan, "TIMED_THIN", plan.TIMED_THIN + 1)
    assert store.found(part) is None


def test_two_runs_do_not_lose_one_anothers_results(store: Store) -> None:
    other = Store(store.file)
    store.add(Part("gpt", OURS, "1gbit"), timed(0.3))
    other.add(Part("gpt", DDP, "1gbit"), timed(0.4))
    last = Store(store.file)
    assert last.found(Part("gpt", OURS, "1gbit")) == timed(0.3)
    assert last.found(Part("gpt", DDP, "1gbit")) == timed(0.4)


def test_a_time_is_taken_again_if_other_programs_ran(store: Store) -> None:
    part = Part("gpt", OURS, "100mbit")
    assert not store.is_open(part)
    store.add(part, {**timed(0.2), "other_cores": 1.1 * plan.BUSY})
    assert store.is_open(part)
    found = figures.figures(store, "gpt")  # shows it until then
    assert "Other programs ran while steps were timed at 100mbit**" in verdicts.text(found)
    assert "first is" not in verdicts.verdict(found, "100mbit")
    assert verdicts.no_gain(found, "100mbit") == ""


def test_removed_parts_are_measured_again(store: Store) -> None:
    part = Part("gpt", OURS, "100mbit")
    store.remove([part])
    assert Store(store.file).found(part) is None
    assert Store(store.file).found(Part("gpt", DDP, "100mbit")) is not None


def test_the_time_left_follows_from_the_parts_so_far() -> None:
    parts = choose(only="DDP", workloads="gpt", links="1gbit,20mbit", seeds="1,2")
    progress = Progress(parts)  # two trainings, then two links
    progress.end(0, 100)
    assert progress.left(1) == 100 + 2 * 60
    progress.end(2, 10)
    assert progress.left(3) == 10


def test_the_target_is_the_loss_of_ddp_at_80_percent(store: Store) -> None:
    assert figures.target_of(store, "gpt") == pytest.approx(4 - 0.01 * TARGET_STEP)
    assert figures.target_of(store, "resnet") is None


def test_the_steps_to_a_loss_lie_between_evaluations() -> None:
    curve = [(0.0, 4.0), (20.0, 3.0), (40.0, 2.0)]
    assert figures.steps_to(curve, 2.5) == 30
    assert figures.steps_to(curve, 3.0) == 20
    assert figures.steps_to(curve, 1.9) is None
    assert figures.loss_at(curve, 30) == 2.5


def test_the_time_to_the_target_is_steps_times_seconds(store: Store) -> None:
    found = figures.figures(store, "gpt")
    ours, local = found.row(OURS.name), found.row(LOCAL.name)
    assert ours and local
    assert ours.links["100mbit"].to_target == pytest.approx([1.2 * TARGET_STEP * 0.2] * 2)
    assert ours.links["100mbit"].utilisation == pytest.approx(0.5)
    assert local.links["100mbit"].time is None
    assert [row.contender for _, row in found.ranking("100mbit")] == [OURS, BF16, DDP]


def test_one_seed_that_misses_the_target_takes_the_contender_out_of_the_ranking(
    store: Store,
) -> None:
    store.add(Part("gpt", OURS, "", 2), trained(plan.STEPS, 20, 0.001))
    found = figures.figures(store, "gpt")
    assert OURS not in [row.contender for _, row in found.ranking("100mbit")]
    row = found.row(OURS.name)
    assert row and "1 of 2 seeds not reached" in page.to_target(row, "100mbit")


def test_the_verdict_names_who_is_first_and_why(store: Store) -> None:
    found = figures.figures(store, "gpt")
    thin, loopback = verdicts.verdict(found, "100mbit"), verdicts.verdict(found, "loopback")
    assert f"first is `thinreduce dqsg` with {0.24 * TARGET_STEP:.0f} s" in thin
    assert f"first is `DDP` with {0.1 * TARGET_STEP:.0f} s; the best of ours is" in loopback
    assert "`DDP` needs 17 % fewer steps and a step of `DDP` takes 100 ms, one of" in loopback
    assert verdicts.verdict(found, "1gbit") == "- **1gbit**: not measured yet."


def test_compression_pays_only_where_it_is_faster(store: Store) -> None:
    found = figures.figures(store, "gpt")
    assert "3.3 times as long" in verdicts.no_gain(found, "100mbit")
    assert "At loopback compression does not pay" in verdicts.no_gain(found, "loopback")
    assert verdicts.no_gain(found, "1gbit") == ""


def test_the_page_has_all_contenders_and_marks_what_is_missing(store: Store) -> None:
    failed = BY_NAME["hivemind"]
    store.add(Part("gpt", failed, "100mbit"), {"error": "ImportError: no averager"})
    readme = store.file.parents[2] / "README.md"
    readme.write_text("a\n<!-- peers: written by make peers -->\nold\n<!-- end of peers -->\nb\n")
    written = page.write(store.file.parents[1], store).read_text()
    assert all(f"| {one.name} |" in written for one in plan.CONTENDERS)
    assert "| hivemind | hivemind | `ImportError: no averager` |" in written
    assert "| thinreduce dqsg | not measured yet |" in written  # over the first link
    assert "Not measured yet: DDP PowerSGD 4, DDP fp16, " in written
    assert written.count("not measured yet") < 40
    assert (store.file.parent / "gpt-loss-100mbit.svg").exists()
    section = readme.read_text()
    assert section.startswith("a\n") and section.endswith("\nb\n") and "old" not in section
    assert section.count("\n| ") == 2 + len(verdicts.README_ROWS)
    assert "\n### Against other tools\n" in section  # under "## Results"


def test_the_page_is_as_narrow_as_all_pages(store: Store) -> None:
    for one in plan.CONTENDERS:
        store.add(Part("gpt", one, "1gbit"), timed(0.3))
        if one.name != DDP.name:
            store.add(Part("gpt", one, "", 1), trained(plan.STEPS, 20, 0.001))
    page.write(store.file.parents[1], store)
    assert "These did not reach the target" in (store.file.parents[1] / "peers.md").read_text()
    assert page_width.too_long(store.file.parents[1] / "peers.md") == []


def test_the_readme_has_no_table_without_times(tmp_path: Path) -> None:
    empty = figures.figures(Store(tmp_path / "results.json"), "gpt")
    assert verdicts.readme(empty) == ""


def test_a_package_that_pip_can_not_install_is_listed(store: Store) -> None:
    store.change("packages", {"deepspeed": {"error": "pip install deepspeed: ERROR: none"}})
    written = page.write(store.file.parents[1], store).read_text()
    assert "| DeepSpeed 1-bit Adam | deepspeed | `pip install deepspeed: ERROR: none` |" in written


def test_an_error_is_one_line_without_paths() -> None:
    log = 'Traceback:\n  File "/a/b/c/d.py"\nOSError: no /usr/lib/python3/dist/x.so\nbye\n'
    assert ranks.error_of(log) == "OSError: no x.so"


def test_an_adapter_has_at_most_60_lines() -> None:
    used = {one.adapter for one in BY_NAME.values() if one.adapter}
    for name in used:
        text = (ROOT / "peers" / "adapters" / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 60, name
        assert any(getattr(one, "name", "") == "Trainer" for one in ast.parse(text).body) or (
            name == "alone"
        )


def test_a_burst_passes_2_ms_of_the_link() -> None:
    assert namespaces.bits_per_second("1.5gbit") == 1.5e9
    assert namespaces.burst_bytes("1gbit") == 250_000
    assert namespaces.burst_bytes("20mbit") == 16_000
    with pytest.raises(ValueError, match="'fast' is no rate"):
        namespaces.bits_per_second("fast")
