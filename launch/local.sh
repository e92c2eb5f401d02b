#!/usr/bin/env bash
# Runs ddpbench on this machine: one rank per GPU, or two CPU ranks without a GPU. The first call installs it.
#
#   bash launch/local.sh resnet18 --amp
#   bash launch/local.sh watch train.py --epochs 3
#
# Takes the arguments of ddpbench: a workload and its flags, or a command such as `report`.
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# runs_script ARGUMENT...: whether the command runs the user's own script, whose arguments follow it.
runs_script() {
  case "$* " in 'watch '* | 'diagnose '*'-m '* | 'diagnose '*'.py '*) return 0 ;; esac
  return 1
}

# ranks_flags ARGUMENT...: the flags that start the ranks; nothing if the command starts none or has --gpus already.
ranks_flags() {
  case "$*" in '' | reproduce) return ;; esac # without NAME it only lists the experiments
  case "$1" in crossover | whatif | make-data | report | plot | list | env | help | version | -h | --help | --version) return ;; esac
  local gpus own=" $* "
  if runs_script "$@"; then # the rest is the script's
    own=${own%%.py *}
    own=${own%% -m *}
  fi
  case $own in *' --gpus'*) return ;; esac
  gpus=$(count_gpus)
  if [ "$gpus" -gt 0 ]; then
    echo "--gpus $gpus"
  elif runs_script "$@"; then
    echo "--gpus 2"
  else
    echo "--gpus 2 --device cpu"
  fi
}

main() {
  prepare ""
  local flags
  read -ra flags <<<"$(ranks_flags "$@")"
  if runs_script "$@"; then
    exec "$venv/bin/python" -m ddpbench "$1" ${flags[@]+"${flags[@]}"} "${@:2}"
  fi
  exec "$venv/bin/python" -m ddpbench "$@" ${flags[@]+"${flags[@]}"}
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  main "$@"
fi
