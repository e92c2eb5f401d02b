# shellcheck shell=bash
# carry_out SIGNALS COMMAND...: runs the command in the background, so that bash hears signals while it waits; passes those of
# the list on to it; returns its exit code. Sourced.
carry_out() {
  local child signal code=0 signals=$1
  shift
  "$@" &
  child=$!
  for signal in $signals; do
    # shellcheck disable=SC2064 # these two are meant as they are now
    trap "kill -$signal $child 2>/dev/null || true" "$signal"
  done
  while true; do # a trapped signal ends `wait` before the command does
    wait "$child" && code=0 || code=$?
    kill -0 "$child" 2>/dev/null || return "$code"
  done
}
