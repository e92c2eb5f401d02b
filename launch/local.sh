#!/usr/bin/env bash
# The main job on this machine: every GPU, or two CPU ranks where there is none. The first call installs.
#
#   bash launch/local.sh resnet18 --amp
#
# Words are those of ddpbench: a workload and its flags, or a command such as `report`.
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# ranks_flags WORD...: how many ranks the words need, as flags; nothing where they start none or say it themselves.
ranks_flags() {
  case "$*" in '' | reproduce) return ;; esac # without a NAME it tells which there are
  case "$1" in crossover | make-data | report | plot | list | env | help | version | -h | --help | --version) return ;; esac
  case " $* " in *' --gpus'*) return ;; esac
  local gpus
  gpus=$(count_gpus)
  if [ "$gpus" -gt 0 ]; then echo "--gpus $gpus"; else echo "--gpus 2 --device cpu"; fi
}

main() {
  prepare ""
  local flags
  read -ra flags <<<"$(ranks_flags "$@")"
  case "${flags[*]-}" in *'--device cpu') share_cores ;; esac
  exec "$venv/bin/python" -m ddpbench "$@" ${flags[@]+"${flags[@]}"}
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  main "$@"
fi
