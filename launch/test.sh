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
case " $* " in
  *" -m slow "*) prepare_frameworks ;;
  *" -m "*) ;;
  *) set -- -n 2 --dist loadfile "$@" ;; # the files of tests in two processes
esac
cd "$root"
exec "$venv/bin/python" -m pytest "$@"
