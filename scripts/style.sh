#!/usr/bin/env bash
# Checks the format of the C++ code, the format, style and types of the Python code, and the width
# of the pages.
# clang-format and `build/tools/bin/ruff format` correct what the first two report.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian has no ruff, so pip installs pinned versions in build/tools. Debian's Python, because mypy
# must see Debian's torch and numpy.
tools=build/tools
requirements=scripts/style-requirements.txt
if ! cmp -s "$requirements" "$tools/installed.txt"; then
  echo "style: installing ruff and mypy in $tools"
  rm -rf "$tools"
  /usr/bin/python3 -m venv "$tools"
  if ! "$tools/bin/pip" install -qq --disable-pip-version-check --no-deps --only-binary :all: \
      -r "$requirements"; then
    echo "style: pip can't install the packages of $requirements; is the network reachable?" >&2
    exit 1
  fi
  cp "$requirements" "$tools/installed.txt"
fi

find apps bench python tests thinreduce -name '*.cc' -o -name '*.h' \
  | xargs clang-format --dry-run --Werror
/usr/bin/python3 scripts/page_width.py
"$tools/bin/ruff" format --quiet --diff .
"$tools/bin/ruff" check --quiet .
"$tools/bin/mypy" --no-error-summary
# Again with the types of a current torch, where the tests have installed it.
if [ -e build/venv/installed.txt ]; then
  "$tools/bin/mypy" --no-error-summary --python-executable build/venv/bin/python \
    --python-version 3.11 --cache-dir "$tools/mypy_torch2_cache"
fi
