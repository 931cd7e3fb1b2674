#!/bin/bash
# Shows what treekill-run is for: a job starts a daemon that forks twice and calls setsid, and runs
# into its time limit. timeout(1) leaves the daemon alive, treekill-run does not.
#
#   tests/demo.sh [TREEKILL_RUN]
#
# Ends with 0 if that is what happened.
set -uo pipefail

program=$(realpath "${1:-target/release/treekill-run}") || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/treekill-demo.XXXXXX") || exit 1
cd "$work" || exit 1

# shellcheck disable=SC2317 # reached by the trap
cleanup() {
  local pid
  for pid in *.pid; do
    # Its lock shows that the daemon is alive, so its pid is still its own.
    [ ! -e "$pid" ] || is_free "${pid%.pid}" || kill -KILL "$(cat "$pid")"
  done
  cd / && rm -rf -- "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# The kernel drops a file lock when the last process that holds it is dead.
is_free() { flock --nonblock "$1.lock" true; }

say() { printf '\n%s\n' "$*"; }
wrong() {
  printf '\nNot as claimed: %s.\n' "$*"
  exit 1
}

cat >daemon <<'END'
#!/bin/bash
# Holds NAME.lock while it lives, and ignores SIGTERM.
trap '' TERM
exec 9>"$1.lock"
flock 9
echo $$ >"$1.pid"
while :; do sleep 1; done
END

cat >job <<'END'
#!/bin/bash
# Starts a daemon (a subshell forks, & forks again, setsid leaves session and group), then works.
(setsid ./daemon "$1" </dev/null >/dev/null 2>&1 &)
until [ -s "$1.pid" ]; do sleep 0.01; done
exec sleep "$2"
END
chmod +x daemon job

say '--- A job that starts a daemon and then takes too long.'
cat job

say '--- timeout 1 ./job'
timeout 1 ./job control 60
status=$?
echo "status $status"
[ $status = 124 ] || wrong "timeout ended with $status, not 124"
if is_free control; then wrong 'the daemon did not survive timeout'; fi
echo "The daemon, pid $(cat control.pid), is still running:"
ps -o pid,ppid,sid,etime,args -p "$(cat control.pid)"

say '--- treekill-run -t 1 -k 1 ./job'
"$program" -t 1 -k 1 ./job ours 60
status=$?
echo "status $status"
[ $status = 124 ] || wrong "treekill-run ended with $status, not 124"
is_free ours || wrong 'the daemon survived treekill-run'
echo "The daemon, pid $(cat ours.pid), is gone, though it ignores SIGTERM: its file lock is free."

say '--- The same job in time: it succeeds, and leaves its daemon behind.'
echo "treekill-run -k 1 --report report.json ./job"
"$program" -k 1 --report report.json ./job leftover 0
status=$?
echo "status $status"
[ $status = 193 ] || wrong "treekill-run ended with $status, not 193"
is_free leftover || wrong 'the daemon survived treekill-run'
grep -q "\"pid\":[[:space:]]*$(cat leftover.pid)\b" report.json ||
  wrong "the report does not name the daemon, pid $(cat leftover.pid)"
echo "The daemon, pid $(cat leftover.pid), is gone, and report.json names it."

say 'As claimed: timeout left the daemon alive, treekill-run left nothing.'
