#!/usr/bin/env bash
# Installs the missing Debian packages for a part of the project.
#   scripts/setup.sh build|python|style|test|lint|fuzz|reproduce|arm64
set -euo pipefail

build=(build-essential cmake ninja-build pkg-config
       libhwy-dev libeigen3-dev libfmt-dev libxxhash-dev libsodium-dev libcli11-dev
       nlohmann-json3-dev
       libgloo-dev libopenmpi-dev openmpi-bin
       libtorch-dev libopenblas0-openmp libpng-dev
       libgtest-dev libgmock-dev libbenchmark-dev libfftw3-dev
       ca-certificates)
python=(python3-dev python3-pybind11 pybind11-dev python3-numpy python3-torch
        python3-pip python3-venv python3-setuptools python3-wheel)
style=(clang-format python3-venv python3-numpy python3-torch)
test=(chromium fonts-dejavu-core python3-pytest python3-matplotlib "${style[@]}")
lint=(clang-tidy "${style[@]}")
fuzz=(clang libclang-rt-14-dev)
reproduce=(python3 python3-matplotlib)
arm64=(cmake ninja-build g++-aarch64-linux-gnu qemu-user libeigen3-dev
       libhwy-dev:arm64 libfmt-dev:arm64 libxxhash-dev:arm64 libsodium-dev:arm64
       libgtest-dev:arm64 libgmock-dev:arm64 libfftw3-dev:arm64)

# npm downloads uPlot and the data sets; an npm that is not Debian's will do.
command -v npm >/dev/null || build+=(npm)

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  python) wanted=("${build[@]}" "${python[@]}") ;;
  style) wanted=("${style[@]}") ;;
  test) wanted=("${build[@]}" "${python[@]}" "${test[@]}") ;;
  lint) wanted=("${build[@]}" "${python[@]}" "${lint[@]}") ;;
  fuzz) wanted=("${build[@]}" "${fuzz[@]}") ;;
  reproduce) wanted=("${build[@]}" "${reproduce[@]}") ;;
  arm64) wanted=("${arm64[@]}") ;;
  *) echo "usage: scripts/setup.sh build|python|style|test|lint|fuzz|reproduce|arm64" >&2; exit 2 ;;
esac

# A package may be there for several architectures; without a suffix the machine's own is meant.
native=$(dpkg --print-architecture 2>/dev/null || true)
is_installed() {
  local architecture=$native
  case "$1" in *:*) architecture=${1#*:} ;; esac
  dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "${1%%:*}" 2>/dev/null \
    | grep -qxE "($architecture|all) installed"
}
missing=()
for package in "${wanted[@]}"; do
  is_installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: there is no apt-get; install the equivalents of these Debian packages: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: packages are missing, and there is no sudo; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
[ "$1" = arm64 ] && "${as_root[@]}" dpkg --add-architecture arm64
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
