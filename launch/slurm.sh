# shellcheck shell=bash
# What the SLURM scripts share: a check of the environment, then one node.sh per node. Sourced, with ddpbench's words, from the
# root of the clone, which is where sbatch was called: SLURM runs a copy of the script from a folder of its own.
#
#   DDPBENCH_INSTALL=1    installs inside the job, while it holds its GPUs, instead of using the environment of install.sh

# shellcheck source=launch/setup.sh
. launch/setup.sh

# One task on each node.
run_per_node=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)

# Ends the job unless the environment is current and its Python runs on every node.
require_environment() {
  local blind install="bash launch/install.sh on the login node makes it; DDPBENCH_VENV=/path names another, DDPBENCH_INSTALL=1 installs in the job"
  case $(venv_state) in
    missing) refuse "there is no environment in $venv" "$install" ;;
    stale) refuse "the environment in $venv is stale: it is of another pyproject.toml or another clone" "$install" ;;
  esac
  # shellcheck disable=SC2016 # for the shells on the nodes
  blind=$("${run_per_node[@]}" bash -c '"$0" -c "" 2>/dev/null || echo "$SLURMD_NODENAME"' "$venv/bin/python" | sort | paste -sd ' ')
  if [ -n "$blind" ]; then
    refuse "$venv/bin/python does not run on $blind" "put the environment and its Python where every node has them: PYTHON=/shared/python3 DDPBENCH_VENV=/shared/venv bash launch/install.sh"
  fi
}

if [ -z "${DDPBENCH_CONTAINER:-}" ]; then
  [ "${DDPBENCH_INSTALL:-}" != 1 ] || prepare ""
  require_environment
fi

# Where the ranks meet: the first node, by the address that SLURM itself reaches it at. Its name need not resolve anywhere.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD_ADDRESS=$(scontrol --oneliner show node "$head" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p') || true
export HEAD_ADDRESS=${HEAD_ADDRESS:-$head}
# srun does not take the batch script's own share of cores by itself.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

command=("${run_per_node[@]}" --kill-on-bad-exit=1 bash launch/node.sh "$@")
printf '%s\n' "$(printf '%q ' "${command[@]}")" >&2
exec "${command[@]}"
