#!/usr/bin/env bash
# Runs a command beside busy processes: no test may depend on how fast the machine is.
#   scripts/busy.sh PROCESSES COMMAND [ARGUMENT...]
set -euo pipefail

count=${1:?usage: scripts/busy.sh PROCESSES COMMAND [ARGUMENT...]}
shift
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < count; ++i)); do
  (while :; do :; done) &
  busy+=($!)
done
"$@"
