#!/usr/bin/env bash
# Runs ddpbench on this machine: one rank per GPU, or two CPU ranks without a GPU. The first call installs it.
#
#   bash launch/local.sh resnet18 --amp
#
# Takes the arguments of ddpbench: a workload and its flags, or a command such as `report`.
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# ranks_flags ARGUMENT...: the flags that start the ranks; nothing if the command starts none or has --gpus already.
ranks_flags() {
  case "$*" in '' | reproduce) return ;; esac # without NAME it only lists the experiments
  case "$1" in crossover | whatif | make-data | report | plot | list | env | help | version | -h | --help | --version) return ;; esac
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
