#!/usr/bin/env bash
# Makes a virtual environment with a current PyTorch for the tests: build/venv, or for
# `make test-integrations` build/integrations. Does nothing when it is up to date; after a failure
# the next run continues with what pip has downloaded.
#   scripts/setup_torch2.sh [integrations]
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  "") venv=build/venv requirements=scripts/torch2-requirements.txt target=test ;;
  integrations) venv=build/integrations requirements=scripts/integrations-requirements.txt target=test-integrations ;;
  *) echo "usage: scripts/setup_torch2.sh [integrations]" >&2; exit 2 ;;
esac
cmp -s "$requirements" "$venv/installed.txt" && exit 0

echo "setup: installing PyTorch in $venv (a download of about 200 MB)"
# Debian's Python, because CMake builds the module for it.
if ! [ -x "$venv/bin/pip" ]; then
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
fi
if ! "$venv/bin/pip" install -q --disable-pip-version-check --prefer-binary -r "$requirements"; then
  echo "setup: pip can't install the packages of $requirements in $venv; is a package index" \
       "reachable? Run 'make $target' again to continue, or 'scripts/setup_torch2.sh ${1:-}' to see" \
       "pip alone" >&2
  exit 1
fi
cp "$requirements" "$venv/installed.txt"
