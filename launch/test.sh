#!/usr/bin/env bash
# Runs the tests in the environment of local.sh. Takes the arguments of pytest.
#
#   bash launch/test.sh            the default suite; skips GPU tests without a GPU
#   bash launch/test.sh -m slow    slow tests; installs frameworks such as lightning and transformers
#   bash launch/test.sh -m cuda    GPU tests
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

prepare test
cd "$root"
case " $* " in
  " -m slow ") # in two processes what measures no training, then the rest one after the other
    prepare_frameworks
    together=(tests/unit tests/distributed/test_{accelerate,callbacks,interrupts,notebook,redact,rendezvous,script_imports,watch_faults}.py)
    "$venv/bin/python" -m pytest "$@" -n 2 --dist loadfile "${together[@]}" || failed=$?
    [ "${failed:-0}" -le 1 ] || exit "$failed" # interrupted
    "$venv/bin/python" -m pytest "$@" "${together[@]/#/--ignore=}" || failed=$?
    exit "${failed:-0}"
    ;;
  *" -m slow "*) prepare_frameworks ;;
  *" -m "*) ;;
  *) set -- -n 2 --dist loadfile "$@" ;; # the files of tests in two processes
esac
exec "$venv/bin/python" -m pytest "$@"
