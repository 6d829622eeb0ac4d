"""The wheel, as pip builds and installs it: it must need neither Gloo nor any other library."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import ranks

import thinreduce

torch = pytest.importorskip("torch")
if torch.__version__.startswith("1."):
    pytest.skip("python-torch2 tests the wheel", allow_module_level=True)

# Libraries that the system of every user has.
ALLOWED = r"lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)\.so\.\d+|ld-linux.*"
TESTS = Path(__file__).parent


def run(*command: object, **options) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * ranks.PATIENCE,
        env={**environment, **options.pop("env", {})},
        **options,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = Path(thinreduce.__file__).parents[2]
    # The build folder stays, so that the next run compiles only what has changed.
    # fmt: off
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder,
        f"--config-settings=build-dir={ranks.ROOT}/build/wheel-test",
        f"--config-settings=cmake.define.THINREDUCE_OBJECTS={build}",
        "--config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1", ranks.ROOT)
    # fmt: on
    [built] = folder.glob("thinreduce-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Returns the Python of a new environment that has the wheel, and the torch of this one."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    code = "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
    site = Path(run(python, "-c", code))
    (site / "torch.pth").write_text(run(sys.executable, "-c", code))
    return python


def test_it_is_small_and_complete(wheel):
    assert wheel.stat().st_size < 5e6
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        [metadata] = [name for name in names if name.endswith("METADATA")]
        about = email.message_from_string(content.read(metadata).decode())
        [notices] = [name for name in names if name.endswith("THIRD_PARTY_NOTICES.txt")]
        named = content.read(notices).decode()
    for library in ("fmt", "Highway", "Eigen", "libsodium", "xxHash", "pybind11"):
        assert f"\n{library}\n-" in named, library
    assert "thinreduce/py.typed" in names and "thinreduce/_core.pyi" in names
    assert sum(name.endswith(".so") for name in names) == 1
    assert any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if "tests" in name]
    assert about["Provides-Extra"] == "torch"
    assert about.get_payload().startswith("# thinreduce")
    assert about["Version"] == thinreduce.__version__


def test_it_needs_no_library(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as content:
        [module] = [name for name in content.namelist() if name.endswith(".so")]
        content.extract(module, tmp_path)
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", tmp_path / module))
    assert "libc.so.6" in needed
    assert not [name for name in needed if not re.fullmatch(ALLOWED, name)], needed
    # Another extension of the process may have a Highway, fmt or libsodium of its own.
    exported = run("nm", "-D", "--defined-only", tmp_path / module).split()
    assert [name for name in exported if re.search("hwy|fmt|sodium|crypto_", name)] == []


def test_it_reduces_arrays(python, tmp_path):
    code = """
import threading, numpy, thinreduce
ranks = thinreduce.local(3)
def work(comm):
    mean = comm.all_reduce_mean(numpy.full(5000, comm.rank + 1.0), "dqsg")
    assert abs(mean - 2).max() < 0.5, mean
threads = [threading.Thread(target=work, args=[comm]) for comm in ranks]
[one.start() for one in threads]; [one.join() for one in threads]
print(thinreduce.__file__, thinreduce.simd_target())
print(open("/proc/self/maps").read())
"""
    out = run(python, "-c", code, cwd=tmp_path)
    file, target = out.splitlines()[0].split()
    assert file.startswith(str(python.parents[1]))
    assert target == thinreduce.simd_target()  # that of Highway's own library
    assert not re.search(r"lib(gloo|hwy|fmt|xxhash|mpi)\b", out)


def test_it_connects_processes_through_torch(python):
    example = ranks.ROOT / "examples" / "numpy_allreduce.py"
    assert "same result everywhere: yes" in run(python, example, "--ranks", 3, "--rows", 100)


def test_without_torch_it_says_what_is_missing(python, tmp_path):
    code = """
import sys, thinreduce
sys.modules["torch"] = None
try:
    thinreduce.connect(0, 2, "127.0.0.1:29400")
except thinreduce.Unavailable as error:
    print(error)
"""
    assert "install thinreduce[torch]" in run(python, "-c", code, cwd=tmp_path)


def test_it_trains_with_the_hook(python, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    names = ["every_method_trains_and_replicas_stay_the_same", "fp32_is_what_ddp_does_itself"]
    started = ranks.start(TESTS / "ddp_scenarios.py", 2, *names, fresh=True)
    for code, out, err in ranks.finish(started):
        assert code == 0, err
        assert out.count('"error": null') == len(names), out + err


def test_a_users_script_passes_mypy(python, tmp_path):
    mypy = ranks.ROOT / "build" / "tools" / "bin" / "mypy"
    if not mypy.exists():
        pytest.skip("make style installs mypy")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\n")
    # fmt: off
    run(mypy, "--config-file", config, "--cache-dir", ranks.ROOT / "build/tools/mypy_user_cache",
        "--python-version", "3.11", "--python-executable", python, TESTS / "typed_script.py",
        cwd=tmp_path)
    # fmt: on
