#!/usr/bin/env bash
# Runs the libFuzzer drivers of tests/fuzz that are built in build/fuzz.
#   scripts/fuzz.sh SECONDS [DRIVER...]
# SECONDS is the time of all drivers together; each gets an equal part of it, one after another.
# Fails on the first crash, leak, broken promise, input that takes longer than 20 s, allocation above
# 64 MiB or process above 2 GiB, and says how to repeat it. Inputs that reach new code are kept in
# build/fuzz/corpus, so that the next run goes on from there; build/fuzz/executions.tsv counts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?usage: scripts/fuzz.sh SECONDS [DRIVER...]}
shift
drivers=("$@")
if [ ${#drivers[@]} -eq 0 ]; then
  for program in build/fuzz/bin/fuzz_*; do drivers+=("${program##*/fuzz_}"); done
fi
share=$((seconds / ${#drivers[@]}))
[ "$share" -ge 1 ] || share=1

# Long enough for every seed of a driver.
longest() {
  case "$1" in
    run_folder) echo 150000 ;;
    payload | session | state) echo 20000 ;;
    images | plan) echo 8192 ;;
    *) echo 4096 ;;
  esac
}

mkdir -p build/fuzz/logs build/fuzz/findings
total=0
for driver in "${drivers[@]}"; do
  program=build/fuzz/bin/fuzz_$driver
  if [ ! -x "$program" ]; then
    echo "fuzz: there is no driver $driver; build it with make fuzz" >&2
    exit 2
  fi
  corpus=build/fuzz/corpus/$driver
  log=build/fuzz/logs/$driver.log
  mkdir -p "$corpus"
  "$program" --write-seeds "$corpus"
  committed=()
  [ -d "tests/fuzz/corpus/$driver" ] && committed=("tests/fuzz/corpus/$driver")
  printf 'fuzz: %-12s %s s ... ' "$driver" "$share"
  # A report of the sanitizers must end the process, also within a thread.
  if ! UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$program" "$corpus" "${committed[@]}" \
      -max_total_time="$share" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=64 \
      -max_len="$(longest "$driver")" -print_final_stats=1 -use_value_profile=1 \
      -artifact_prefix="build/fuzz/findings/$driver-" >"$log" 2>&1; then
    echo "FAILED"
    grep -m1 -A30 -E 'FINDING|ERROR|runtime error|SUMMARY' "$log" >&2 || tail -30 "$log" >&2
    file=$(grep -o "build/fuzz/findings/$driver-[a-z]*-[0-9a-f]*" "$log" | tail -1 || true)
    echo "fuzz: $driver failed; all of its output is in $log. Repeat it with: $program $file" >&2
    exit 1
  fi
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  total=$((total + count))
  printf '%s\t%s\t%s\n' "$(git rev-parse --short HEAD 2>/dev/null || echo -)" "$driver" "$count" \
    >>build/fuzz/executions.tsv
  echo "$count executions, no finding"
done
echo "fuzz: $total executions in total"
