"""Builds the C++ module with CMake; all other settings are in pyproject.toml.

If the environment variable THINREDUCE_BUILD names a build folder, its module is used instead.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DTHINREDUCE_DEVELOPER=OFF",
    "-DTHINREDUCE_MPI=OFF",
    "-DTHINREDUCE_PYTHON=ON",
    f"-DPython_EXECUTABLE={sys.executable}",
]


def version() -> str:
    """Returns the version number in CMakeLists.txt, its only place."""
    text = (ROOT / "CMakeLists.txt").read_text()
    found = re.search(r"project\(thinreduce VERSION ([0-9.]+)", text)
    if found is None:
        raise SystemExit(f"{ROOT}/CMakeLists.txt has no project(thinreduce VERSION ...)")
    return found[1]


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        given = os.environ.get("THINREDUCE_BUILD")
        folder = Path(given).resolve() if given else Path(self.build_temp).resolve()
        if not given:
            folder.mkdir(parents=True, exist_ok=True)
            generator = ["-G", "Ninja"] if shutil.which("ninja") else []
            subprocess.check_call(
                ["cmake", "-S", str(ROOT), "-B", str(folder), *generator, *OPTIONS]
            )
            jobs = str(os.cpu_count() or 1)
            subprocess.check_call(
                ["cmake", "--build", str(folder), "--target", "thinreduce_python", "-j", jobs]
            )
        built = sorted((folder / "python" / "thinreduce").glob("_core*.so"))
        if not built:
            raise SystemExit(
                f"there is no Python module in {folder}/python/thinreduce: CMake builds it only if "
                "it finds pybind11 and Gloo; install them (on Debian: scripts/setup.sh python)"
            )
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built[0], target)


setup(
    version=version(),
    ext_modules=[Extension("thinreduce._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
