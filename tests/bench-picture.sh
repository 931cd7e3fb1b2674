#!/bin/bash
# What the picture of a tree costs: how long it holds up the first signal of a stop, for 100 and for 5000 processes, beside
# the bounds. Nothing of such a tree lives longer than a minute.
#
#   tests/bench-picture.sh [TREEKILL_RUN [ROUNDS]]
set -euo pipefail
export LC_ALL=C

program=$(realpath "${1:-target/release/treekill-run}")
rounds=${2:-5}

# The keeper takes a signal from the command for a request to stop, so the tree is complete by then, and by the pause
# each process has got as far as its own sleep: else they would compete with the keeper for the CPUs.
# shellcheck disable=SC2016 # for the shell inside
tree='for ((i = 1; i < $0; i++)); do sleep 60 & done; sleep 1; kill -TERM $PPID; wait'

# Microseconds that each round took, and processes that were left out.
measure() {
  for ((round = 0; round < rounds; round++)); do
    { "$program" -q -b "$1" -k 20 --report-fd 1 bash -c "$tree" "$2" || true; } 2>/dev/null |
      sed -n 's/.*"tree_at_stop":{"at_ms":[0-9]*,"took_us":\([0-9]*\),.*"left_out":\([0-9]*\)}.*/\1 \2/p'
  done | sort -n
}

echo "shortest, median and longest of $rounds; $(uname -sr), $(nproc) cores"
printf '%-10s %9s %12s %12s %12s %9s %9s\n' backend processes 'shortest ms' 'median ms' 'longest ms' 'bound ms' 'left out'
for backend in cgroup subreaper; do
  "$program" -b "$backend" true 2>/dev/null || { printf '%-10s not available here\n' "$backend"; continue; }
  for pair in 100:5 5000:20; do
    measure "$backend" "${pair%:*}" | awk -v b="$backend" -v n="${pair%:*}" -v bound="${pair#*:}" \
      '{ took[NR] = $1; left[NR] = $2 }
       END { m = int((NR + 1) / 2)
             printf "%-10s %9d %12.2f %12.2f %12.2f %9d %9d\n",
               b, n, took[1] / 1000, took[m] / 1000, took[NR] / 1000, bound, left[m] }'
  done
done
