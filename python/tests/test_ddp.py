"""Runs DDP with the hook in processes, which run all scenarios of a script one after another."""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks
import torch

import thinreduce

# The number of ranks of every script. A second word is the transport.
SCRIPTS = {
    "ddp_scenarios.py": 2,
    "error_scenarios.py": 2,
    "error_scenarios.py torch": 2,
    "group_scenarios.py": 4,
    "local_scenarios.py": 3,
    "local_scenarios.py torch": 3,
    "saving_scenarios.py": 2,
    "transport_scenarios.py": 3,
}
if not torch.__version__.startswith("1."):
    SCRIPTS["modern_scenarios.py"] = 2
    SCRIPTS["fsdp_scenarios.py"] = 4


def path(script: str) -> Path:
    return Path(__file__).parent / script.split()[0]


def names(script: str) -> list[str]:
    return [
        function.name
        for function in ast.parse(path(script).read_text()).body
        if isinstance(function, ast.FunctionDef)
        and any(getattr(one, "id", "") == "scenario" for one in function.decorator_list)
    ]


@lru_cache(None)
def results(script: str) -> dict[str, list[str]]:
    _, *transport = script.split()
    environment = {"TRANSPORT": transport[0]} if transport else {}
    # New processes hash strings differently: an order that follows from hashes would show there.
    fresh = script == "ddp_scenarios.py"
    started = ranks.start(path(script), SCRIPTS[script], environment=environment, fresh=fresh)
    finished = ranks.finish(started)
    by_name: dict[str, list[str]] = {}
    for rank, (code, out, err) in enumerate(finished):
        for line in out.splitlines():
            if line.startswith("{"):
                one = json.loads(line)
                by_name.setdefault(one["scenario"], []).append(one["error"])
        if code != 0:
            by_name.setdefault("", []).append(f"rank {rank} ended with {code}:\n{err[-3000:]}")
    return by_name


@pytest.mark.parametrize(
    ("script", "name"), [(script, name) for script in SCRIPTS for name in names(script)]
)
def test_scenario(script, name):
    found = results(script)
    errors = [error for error in found.get(name, []) if error]
    assert not errors, "\n".join(errors)
    assert len(found.get(name, [])) == SCRIPTS[script], "did not run: " + "\n".join(
        found.get("", [])
    )


@pytest.mark.skipif(not torch.__version__.startswith("1."), reason="torch 2 has fully_shard")
def test_a_torch_without_fully_shard_is_refused():
    with pytest.raises(thinreduce.Unavailable, match=r"torch 1\.13\S* has none, torch 2.13 has it"):
        thinreduce.fsdp.attach(torch.nn.Linear(2, 2), "dqsg")


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_ranks_end_well(script):
    assert "" not in results(script), "\n".join(results(script)[""])
