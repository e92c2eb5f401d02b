#!/usr/bin/env bash
# Runs ruff and mypy on the whole clone, in the environment of local.sh. Runs all checks; fails if one fails.
#
#   bash launch/lint.sh
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

prepare dev
cd "$root"
failed=0
for check in "ruff check ." "ruff format --check ." mypy; do
  # shellcheck disable=SC2086 # a module and its flags
  "$venv/bin/python" -m $check || failed=1
done
exit "$failed"
