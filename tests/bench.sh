#!/bin/bash
# What a run costs: `true` bare, under GNU timeout and under treekill-run, in turn, so that whatever
# disturbs the machine disturbs all alike. Prints medians, and ratios to the two others.
#
#   tests/bench.sh [TREEKILL_RUN [ROUNDS]]
set -euo pipefail
export LC_ALL=C

program=$(realpath "${1:-target/release/treekill-run}")
rounds=${2:-300}
work=$(mktemp -d "${TMPDIR:-/tmp}/treekill-bench.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# Appends the microseconds that a command took to a file.
measure() {
  local file=$1 start=$EPOCHREALTIME end
  shift
  "$@"
  end=$EPOCHREALTIME
  echo $((${end/./} - ${start/./})) >>"$work/$file"
}

for ((i = 0; i < rounds; i++)); do
  measure bare /bin/true
  measure timeout timeout 60 /bin/true
  for backend in cgroup subreaper; do
    # A backend that cannot be had here is left out, after its first try.
    [ ! -e "$work/no-$backend" ] || continue
    "$program" -b "$backend" /bin/true 2>/dev/null || { : >"$work/no-$backend"; continue; }
    measure "$backend" "$program" -b "$backend" -t 60 /bin/true
  done
done

median() { sort -n "$work/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

bare=$(median bare)
timeout=$(median timeout)
echo "median of $rounds interleaved runs of true; $(uname -sr), $(nproc) cores, $(timeout --version | head -n 1)"
printf '%-24s %8s %12s %12s\n' '' us '/ timeout' '/ bare'
for name in bare timeout cgroup subreaper; do
  [ -e "$work/$name" ] || { printf '%-24s not available here\n' "treekill-run, $name"; continue; }
  value=$(median "$name")
  case $name in cgroup | subreaper) label="treekill-run, $name" ;; *) label=$name ;; esac
  awk -v l="$label" -v v="$value" -v t="$timeout" -v b="$bare" \
    'BEGIN { printf "%-24s %8d %12.2f %12.2f\n", l, v, v / t, v / b }'
done
