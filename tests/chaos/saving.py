"""Runs of `thinreduce train` that end while they save a checkpoint: killed, or on a full disk.

A run saves after every step. After the fault it is resumed for some steps; the losses of all its
steps must be those of a run without faults, which only the old or the new state as a whole gives.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

from trial import Trial
from world import HANG

PROGRAM = Path(__file__).parents[2] / "build/release/bin/thinreduce"
# Steps after the one that is resumed. A wrong residual changes the loss of the second one.
_MORE = 3
_LAST = 16  # of the run without faults


def _start(run: Path, *more: str) -> subprocess.Popen[str]:
    command = [str(PROGRAM), "train", *more]
    if "--resume" not in more:
        command += ["--model", "fc-300-100", "--ranks", "2", "--steps", "1000", "--batch", "8"]
        command += ["--method", "topk", "--schedule", "constant", "--evaluate-every", "1000"]
        command += ["--out", str(run)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(program: subprocess.Popen[str]) -> str:
    """Returns the program's standard error; kills it if it hangs."""
    try:
        return program.communicate(timeout=HANG)[1]
    except subprocess.TimeoutExpired:
        program.kill()
        return "hangs: " + program.communicate()[1]


def _losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()]


@functools.cache
def _expected_losses() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        errors = _finish(_start(Path(folder) / "run", "--stop-after", str(_LAST)))
        losses = _losses(Path(folder) / "run")
        assert len(losses) == _LAST, errors
        return losses


def _saved_step(run: Path) -> int:
    return int(json.loads((run / "checkpoint.json").read_text())["step"])


def _wait_for(file: Path, program: subprocess.Popen[str]) -> None:
    until = time.monotonic() + HANG
    while not file.exists():
        if time.monotonic() > until or program.poll() is not None:
            raise RuntimeError(f"{file} did not appear: {_finish(program)}")
        time.sleep(0.0002)


def _resume(run: Path, trial: Trial) -> None:
    """Resumes a run for some steps and compares its losses."""
    stop = _saved_step(run) + _MORE
    errors = _finish(_start(run, "--resume", str(run), "--stop-after", str(stop)))
    losses = _losses(run)
    trial.checked = stop
    if losses != _expected_losses()[:stop]:
        trial.wrong = 1
        trial.failure = f"the run can't be resumed to the same losses: {losses}; {errors}"


def kill(numbers: random.Random) -> Trial:
    """A run is killed while it saves."""
    _expected_losses()
    while True:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            program = _start(run, "--checkpoint-every", "1")
            # A save begins with its folder. The first checkpoint has no predecessor.
            _wait_for(run / f"checkpoint-{numbers.randint(2, _LAST - _MORE - 1)}", program)
            time.sleep(numbers.uniform(0, 0.02))
            program.kill()
            _finish(program)
            saved = _saved_step(run)
            # Old folders are removed at the end of a save.
            folders = {int(one.name.split("-")[1]) for one in run.glob("checkpoint-*")}
            if folders == {saved} or saved > _LAST - _MORE:
                continue  # between two saves, or too late to compare
            trial = Trial(outcome="old state" if max(folders) > saved else "new state")
            _resume(run, trial)
            return trial


@contextlib.contextmanager
def _small_disk(megabytes: int) -> Iterator[Path]:
    """Yields a folder on a disk of its own, which only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private = 0x20000, 0x4000 | 0x40000
    with tempfile.TemporaryDirectory() as folder:
        options = f"size={megabytes}m".encode()
        if (
            libc.unshare(new_mounts)
            or libc.mount(None, b"/", None, private, None)
            or libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, options)
        ):
            raise PermissionError("a disk of its own needs root")
        try:
            yield Path(folder)
        finally:
            libc.umount2(folder.encode(), 2)


def _keep_full(disk: Path, left: int, program: subprocess.Popen[str]) -> None:
    """Leaves `left` bytes of a disk free, until a program that saves there has ended."""
    until = time.monotonic() + HANG
    with (disk / "filler").open("wb") as filler:
        while program.poll() is None and time.monotonic() < until:
            more = shutil.disk_usage(disk).free - left
            if more > 0:
                with contextlib.suppress(OSError):  # the program was faster
                    os.posix_fallocate(filler.fileno(), filler.tell(), more)
                    filler.seek(more, os.SEEK_CUR)


def _fill(numbers: random.Random) -> Trial:
    with _small_disk(64) as disk:
        run = disk / "run"
        program = _start(run, "--checkpoint-every", "1")
        _wait_for(run / "checkpoint.json", program)
        checkpoint = sum(file.stat().st_size for file in run.glob("checkpoint-*/*"))
        _keep_full(disk, numbers.randrange(checkpoint), program)
        errors = _finish(program)
        trial = Trial(outcome="error that names the reason")
        if program.returncode != 1 or "No space left on device" not in errors:
            trial.failure = f"exit code {program.returncode}: {errors}"
            return trial
        (disk / "filler").unlink()
        _resume(run, trial)
        return trial


def fill_disk(numbers: random.Random) -> Trial:
    """The disk is full at some byte of a checkpoint."""
    _expected_losses()
    pipe, theirs = get_context("fork").Pipe()

    def run() -> None:
        try:
            theirs.send(_fill(numbers))
        except Exception as error:
            theirs.send(error)

    process = get_context("fork").Process(target=run)
    process.start()
    result = pipe.recv()
    process.join()
    if isinstance(result, Exception):
        raise result
    return result
