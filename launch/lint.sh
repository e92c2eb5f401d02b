#!/usr/bin/env bash
# Runs ruff, mypy and hadolint on the whole clone, in the environment of local.sh. Runs all checks; fails if one fails.
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
"$venv/bin/hadolint" --ignore DL3008 launch/Dockerfile || failed=1 # versions of Debian's packages are those of the release
exit "$failed"
