"""Runs DDP with the hook in two processes, which run all scenarios one after another."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks

SCRIPT = Path(__file__).parent / "ddp_scenarios.py"
NAMES = [
    function.name
    for function in ast.parse(SCRIPT.read_text()).body
    if isinstance(function, ast.FunctionDef) and function.decorator_list
]


@pytest.fixture(scope="module")
def results():
    finished = ranks.finish(ranks.start(SCRIPT, 2), 240)
    by_name: dict[str, list[str]] = {}
    for rank, (code, out, err) in enumerate(finished):
        for line in out.splitlines():
            if line.startswith("{"):
                one = json.loads(line)
                by_name.setdefault(one["scenario"], []).append(one["error"])
        if code != 0:
            by_name.setdefault("", []).append(f"rank {rank} ended with {code}:\n{err[-3000:]}")
    return by_name


@pytest.mark.parametrize("name", NAMES)
def test_scenario(results, name):
    errors = [error for error in results.get(name, []) if error]
    assert not errors, "\n".join(errors)
    assert len(results.get(name, [])) == 2, "did not run: " + "\n".join(results.get("", []))


def test_all_ranks_end_well(results):
    assert "" not in results, "\n".join(results[""])
