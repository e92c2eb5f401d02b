# shellcheck shell=bash
# Shared by the SLURM scripts: checks the environment, then runs one node.sh per node. Sourced with the arguments of ddpbench from
# the root of the clone, where sbatch was called: SLURM runs a copy of the script from another folder.
#
#   job_folder            the folder of the job, if sbatch got --chdir: there ddpbench runs
#   DDPBENCH_INSTALL=1    installs inside the job, which holds its GPUs meanwhile, instead of using the environment of install.sh

# shellcheck source=launch/setup.sh
. launch/setup.sh

# Prints the number of GPUs of the job, on all nodes together, if sbatch requested none; nothing if it did (TresPerNode, TresPerJob ...).
# --exclusive gives a job all GPUs of its nodes, but srun gives a step only those that were requested.
count_unrequested_gpus() {
  local job=$SLURM_JOB_ID
  [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # the job ID of one task names the whole array
  scontrol --oneliner --details show job "$job" | tr ' ' '\n' | awk -F= '
    /^TresPer.*gpu/ { requested = 1 }
    $1 == "JOB_GRES" { for (i = split($2, gres, ","); i > 0; i--) if (sub(/^gpu:(.*:)?/, "", gres[i])) gpus += gres[i] }
    END { if (!requested) print gpus + 0 }'
}

# One task on each node, with all GPUs of the job. srun would inherit --gpus-per-node, although --gres may have requested the GPUs.
unset SLURM_GPUS_PER_NODE
run_per_node=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
gpus=$(count_unrequested_gpus)
if [ "${gpus:-0}" -gt 0 ]; then
  run_per_node+=(--gpus="$gpus") # --gpus-per-node would fail on nodes with different numbers of GPUs
elif [ "$gpus" = 0 ] && [[ $(sinfo --noheader --format=%G) == *gpu* ]]; then # without GPUs in SLURM, node.sh counts those of the node
  refuse "the job has no GPU, but the cluster has" "to select nodes with GPUs: sbatch --partition=NAME or --gpus-per-node=N; to run on CPUs: --gpus-per-node=0"
fi

# Ends the job unless the environment is current and its Python runs on every node.
require_environment() {
  local failing_nodes install="run bash launch/install.sh on the login node; or set DDPBENCH_VENV=/path to another one, or DDPBENCH_INSTALL=1 to install in the job"
  require_own_environment
  case $(venv_state) in
    missing) refuse "no environment in $venv" "$install" ;;
    stale) refuse "the environment in $venv is stale: it was created from another pyproject.toml, or before the clone was moved" "$install" ;;
  esac
  # shellcheck disable=SC2016 # for the shells on the nodes
  failing_nodes=$("${run_per_node[@]}" bash -c '"$0" -c "" 2>/dev/null || echo "$SLURMD_NODENAME"' "$venv/bin/python" | sort | paste -sd ' ')
  if [ -n "$failing_nodes" ]; then
    refuse "$venv/bin/python does not run on $failing_nodes" "put the environment and its Python on a file system that all nodes share: PYTHON=/shared/python3 DDPBENCH_VENV=/shared/venv bash launch/install.sh"
  fi
}

if [ -z "${DDPBENCH_CONTAINER:-}" ]; then
  [ "${DDPBENCH_INSTALL:-}" != 1 ] || prepare ""
  require_environment
fi

# Rendezvous address: that of the first node as SLURM knows it, since its name may not resolve on the other nodes.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD_ADDRESS=$(scontrol --oneliner show node "$head" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p') || true
export HEAD_ADDRESS=${HEAD_ADDRESS:-$head}
# srun does not inherit --cpus-per-task from the batch script. Without it, the task has all cores of the job on its node.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

node_script=launch/node.sh
if [ "${job_folder:-$PWD}" != "$PWD" ]; then
  node_script=$root/launch/node.sh
  run_per_node+=(--chdir="$job_folder")
fi
command=("${run_per_node[@]}" --kill-on-bad-exit=1 bash "$node_script" "$@")
printf '%s\n' "$(masked "${command[@]}")" >&2
exec "${command[@]}"
