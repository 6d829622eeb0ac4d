"""`make reproduce-long` continues after a stop and trains nothing twice. The program is a stub."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from reproduce.long import Long
from reproduce.long_settings import TRAININGS
from reproduce.runs import Failed

# Records every call of `train`. A training whose spec is in the file `dies` stops at step 5.
STUB = """#!/usr/bin/env python3
import json, pathlib, sys
home = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
if arguments[0] == "methods":
    levels = {"name": "levels", "default": "7"}
    names = ("fp32", "sketch", "fft", "gradiveq", "variance", "topk", "qsgd", "powersgd")
    print(json.dumps([{"name": "dqsg", "options": [levels]}]
                     + [{"name": name, "options": []} for name in names]))
    sys.exit()
if "--fetch-only" in arguments:
    sys.exit()
with (home / "calls").open("a") as calls:
    calls.write(" ".join(arguments) + "\\n")
resumes = "--resume" in arguments
run = pathlib.Path(arguments[arguments.index("--resume" if resumes else "--out") + 1])
run.mkdir(exist_ok=True)
(run / "checkpoint.json").write_text('{"step": 5}')
dies = home / "dies"
if dies.exists() and dies.read_text() in arguments:
    sys.exit(3)
line = {"step": 10, "accuracy": 0.5, "seconds": 1.25}
(run / "evaluations.jsonl").write_text(json.dumps(line) + "\\n")
(run / "summary.json").write_text(json.dumps({"status": "finished", "accuracy": 0.5, "steps": 10,
    "bytes_sent_total": 1000, "ratio": 4.0, "seconds": 2.0}))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    program = tmp_path / "thinreduce"
    program.write_text(STUB)
    program.chmod(0o755)
    return tmp_path


def start(home: Path) -> Long:
    return Long(home / "thinreduce", home / "runs", home / "long.json")


def calls(home: Path) -> list[str]:
    return (home / "calls").read_text().splitlines()


def test_a_stopped_training_continues_and_a_finished_one_is_kept(home: Path) -> None:
    plan = TRAININGS[:3]
    (home / "dies").write_text(plan[1].spec)
    with pytest.raises(Failed, match="exit code 3"):
        start(home).run(plan)
    assert [row["name"] for row in json.loads((home / "long.json").read_text())["trainings"]] == [
        plan[0].name
    ]
    (home / "dies").unlink()
    start(home).run(plan)
    asked = calls(home)
    assert len(asked) == 4
    assert asked[2] == f"train --resume {home}/runs/{plan[1].name}"
    start(home).run(plan)
    assert len(calls(home)) == 4
    rows = json.loads((home / "long.json").read_text())["trainings"]
    assert [row["name"] for row in rows] == [one.name for one in plan]
    assert rows[1]["curve"] == [[10, 0.5, 1.2]]
    assert "+0.00 | 1.0x" in (home / "long.md").read_text()


def test_a_changed_default_is_trained_again(home: Path) -> None:
    dqsg = [one for one in TRAININGS if one.spec == "dqsg"][:1]
    start(home).run(dqsg)
    program = home / "thinreduce"
    program.write_text(program.read_text().replace('"default": "7"', '"default": "15"'))
    start(home).run(dqsg)
    assert [call.split()[1] for call in calls(home)] == ["--method", "--method"]


def test_names_are_unique_and_every_baseline_is_trained() -> None:
    names = [one.name for one in TRAININGS]
    assert len(set(names)) == len(names)
    assert {one.baseline for one in TRAININGS} <= set(names)
