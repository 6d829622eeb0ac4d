#!/usr/bin/env bash
# Downloads uPlot, which draws the charts of `thinreduce report`, to .cache/ with npm, once.
set -euo pipefail

version=1.6.32
sha256=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d

cache=$(cd "$(dirname "$0")/.." && pwd)/.cache
target=$cache/uplot-$version
[ -f "$target/LICENSE" ] && exit 0

if ! command -v npm >/dev/null; then
  echo "fetch_uplot: npm is not installed; run scripts/setup.sh build" >&2
  exit 1
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/uplot.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "setup: downloading uplot $version"
if ! (cd "$work" && npm pack --silent "uplot@$version" >npm.log 2>&1); then
  cat "$work/npm.log" >&2
  echo "fetch_uplot: npm can't download uplot@$version (its output is above); is the network reachable?" >&2
  exit 1
fi
archive=$work/uplot-$version.tgz
actual=$(sha256sum "$archive" | cut -d ' ' -f 1)
if [ "$actual" != "$sha256" ]; then
  echo "fetch_uplot: $(basename "$archive") has SHA-256 $actual instead of $sha256; do not use it" >&2
  exit 1
fi
tar -xzf "$archive" -C "$work"
# The folder appears whole or not at all, even if two builds download at the same time.
rm -rf "$target"
mv -T "$work/package" "$target"
