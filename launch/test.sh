#!/usr/bin/env bash
# The tests, in the environment of local.sh: words are those of pytest.
#
#   bash launch/test.sh            the default suite; without a GPU it skips what needs one
#   bash launch/test.sh -m slow    what takes minutes
#   bash launch/test.sh -m cuda    what needs a GPU
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

prepare test
cd "$root"
exec "$venv/bin/python" -m pytest "$@"
