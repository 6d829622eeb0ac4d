#!/usr/bin/env bash
# Trains LeNet on MNIST with every method, on 4 ranks over a slow emulated link, and compares them.
#   scripts/demo.sh [STEPS [LINK]]
set -euo pipefail
cd "$(dirname "$0")/.."

thinreduce=build/release/bin/thinreduce
steps=${1:-80}
link=${2:-100mbit}
out=runs/demo
mkdir -p "$out"

"$thinreduce" train --data mnist --fetch-only
names=$("$thinreduce" methods --json | sed -n 's/^    "name": "\(.*\)",$/\1/p')
summaries=()
for name in $names; do
  echo "== $name"
  # A method that fails must not hide the results of the others.
  if "$thinreduce" train --data mnist --model lenet --ranks 4 --steps "$steps" --link "$link" \
      --method "$name" --evaluate-every $(((steps + 4) / 5)) --evaluate-samples 1000 \
      --out "$out/$name" --overwrite; then
    summaries+=("$out/$name")
  else
    echo "demo: the training with $name failed, so the table and the report leave it out" >&2
  fi
done

echo
echo "LeNet on MNIST, 4 ranks x 32 images, $steps steps, link $link"
{
  echo "method accuracy seconds sent(MB) smaller"
  for run in "${summaries[@]}"; do
    value() { sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$run/summary.json"; }
    echo "$(value method_name) $(value accuracy) $(value seconds) $(value bytes_sent_total) $(value ratio)"
  done
} | awk 'NR == 1 {printf "%-10s %9s %9s %9s %9s\n", $1, $2, $3, $4, $5; next}
         {printf "%-10s %7.2f %% %9.1f %9.1f %8.1fx\n", $1, $2 * 100, $3, $4 / 1e6, $5}'

echo
"$thinreduce" report "${summaries[@]}" -o "$out/report.html"
echo "report: $PWD/$out/report.html"
