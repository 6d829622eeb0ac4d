"""Prints the versions of packages of this Python as JSON, or what pip said in FOLDER/pip-NAME.log.

The arguments are FOLDER and the packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path


def found(folder: Path, name: str) -> dict[str, str]:
    try:
        return {"version": importlib.metadata.version(name)}
    except importlib.metadata.PackageNotFoundError:
        lines = (folder / f"pip-{name}.log").read_text().splitlines()
        errors = [line for line in lines if "error" in line.lower()]
        return {"error": f"pip install {name}: {(errors or lines or ['no output'])[-1].strip()}"}


names = [one.split("=")[0] for one in sys.argv[2:]]
print(json.dumps({name: found(Path(sys.argv[1]), name) for name in names}, indent=1))
