"""Ranks with a secret: the same, different ones, and none."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks

import thinreduce

SCRIPT = Path(__file__).parent / "secret_ranks.py"
ONE = "correct_horse_battery_staple"
OTHER = "another_horse_another_battery"


def said(transport: str, *secrets: str, environment: dict[str, str] | None = None) -> list[str]:
    """Returns what each rank printed."""
    started = ranks.start(SCRIPT, len(secrets), transport, *secrets, environment=environment)
    finished = ranks.finish(started)
    for code, _out, err in finished:
        assert code == 0, err
    return [out for _code, out, _err in finished]


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_ranks_with_the_same_secret_train(transport):
    assert said(transport, ONE, ONE) == ["same\n"] * 2


def test_the_secret_comes_from_the_environment(tmp_path):
    path = tmp_path / "secret"
    path.write_text(ONE + "\n")
    path.chmod(0o600)
    environment = {"THINREDUCE_SECRET_FILE": str(path)}
    assert said("gloo", "env", ONE, environment=environment) == ["same\n"] * 2


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_a_rank_with_another_secret_is_refused(transport):
    for line in said(transport, ONE, OTHER):
        assert "has another secret" in line, line
        assert "rank 0" in line and "rank 1" in line, line


@pytest.mark.parametrize("transport", ["gloo", "torch"])
def test_a_rank_without_a_secret_is_refused(transport):
    for line in said(transport, ONE, ONE, "-"):
        assert line.startswith("mismatch: not all ranks have a secret"), line
        assert "a secret on ranks 0, 1; no secret on rank 2" in line, line


def test_connect_takes_a_secret():
    with pytest.raises(thinreduce.BadInput, match="the secret has 5 bytes"):
        thinreduce.connect(0, 2, f"127.0.0.1:{ranks.free_port()}", secret="short")


def test_a_secret_that_others_may_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_text(ONE)
    path.chmod(0o644)
    monkeypatch.setenv("THINREDUCE_SECRET_FILE", str(path))
    with pytest.raises(thinreduce.BadInput, match=f"chmod 600 {path}"):
        thinreduce.State("dqsg")


def test_a_secret_is_not_pickled():
    state = thinreduce.State("dqsg", secret=ONE)
    assert ONE.encode() not in pickle.dumps(state)
    assert os.environ.get("THINREDUCE_SECRET") is None
