#!/usr/bin/env bash
# Makes the virtual environment of `make peers`, build/peers/venv, and tries to install each
# contender of scripts/peers-requirements.txt. build/peers/packages.json says what was installed, and
# what pip said where it was not; `make peers` shows it. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/peers requirements=scripts/peers-requirements.txt
cmp -s "$requirements" "$folder/installed.txt" && exit 0

echo "setup: installing PyTorch and the contenders in $folder/venv (a download of about 250 MB)"
# Debian's Python, because CMake builds the module for it.
[ -x "$folder/venv/bin/pip" ] || { rm -rf "$folder/venv"; /usr/bin/python3 -m venv "$folder/venv"; }
pip=("$folder/venv/bin/pip" install --disable-pip-version-check --prefer-binary -q)
mapfile -t packages < <(grep -v '^#' "$requirements")
if ! "${pip[@]}" "${packages[0]}" "${packages[1]}" setuptools wheel; then
  echo "setup: pip can't install ${packages[0]} in $folder/venv; is a package index reachable?" \
       "Run 'make peers' again to continue" >&2
  exit 1
fi
for package in "${packages[@]:2}"; do
  # A contender must not replace torch, and some need it to build.
  "${pip[@]}" --no-build-isolation -c <(printf '%s\n' "${packages[@]:0:2}") "$package" \
    >"$folder/pip-${package%%=*}.log" 2>&1 || true
done
# DeepSpeed compiles an operation at its first start, which takes minutes: longer than its ranks wait.
PATH="$PWD/$folder/venv/bin:$PATH" TORCH_EXTENSIONS_DIR="$PWD/$folder/extensions" \
  "$folder/venv/bin/python" -c "from deepspeed.comm.torch import build_shm_op; build_shm_op()" \
  >"$folder/compile-deepspeed.log" 2>&1 || true
"$folder/venv/bin/python" scripts/peers_packages.py "$folder" "${packages[@]:2}" \
  >"$folder/packages.json"
cp "$requirements" "$folder/installed.txt"
