#!/usr/bin/env bash
# Fetches uPlot, which draws the charts of `thinreduce report`, from npm into .cache/, once.
set -euo pipefail

version=1.6.32
sha256=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d

cache=$(cd "$(dirname "$0")/.." && pwd)/.cache
target=$cache/uplot-$version
[ -f "$target/LICENSE" ] && exit 0

if ! command -v npm >/dev/null; then
  echo "fetch_uplot: npm is missing; run scripts/setup.sh build" >&2
  exit 1
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/uplot.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "setup: fetching uplot $version"
if ! (cd "$work" && npm pack --silent "uplot@$version" >npm.log 2>&1); then
  cat "$work/npm.log" >&2
  echo "fetch_uplot: npm can't fetch uplot@$version; is the registry reachable?" >&2
  exit 1
fi
archive=$work/uplot-$version.tgz
actual=$(sha256sum "$archive" | cut -d ' ' -f 1)
if [ "$actual" != "$sha256" ]; then
  echo "fetch_uplot: $(basename "$archive") has SHA-256 $actual, expected $sha256" >&2
  exit 1
fi
tar -xzf "$archive" -C "$work"
# Whole or not at all, also when two builds fetch at the same time.
rm -rf "$target"
mv -T "$work/package" "$target"
