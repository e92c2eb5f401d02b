#!/usr/bin/env bash
# Creates the environment of the SLURM scripts on the login node, so that no job holds GPUs while it installs.
#
#   bash launch/install.sh
#   DDPBENCH_DRIVER=550 DDPBENCH_VENV=/shared/venv bash launch/install.sh
#
# launch/setup.sh lists the variables. A current environment is left unchanged.
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if [ -n "${DDPBENCH_DRIVER:-}" ] && [ "$(venv_state)" = current ]; then
  say "DDPBENCH_DRIVER has no effect on an installed environment; to apply it, remove $venv first"
fi
prepare ""
say "the environment in $venv is ready"
