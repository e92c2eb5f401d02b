# shellcheck shell=bash
# What the two SLURM scripts share: the environment made once, then one node.sh a node. Sourced, with ddpbench's words, from the
# root of the clone, which is where sbatch was called: SLURM runs a copy of the script from a folder of its own.

# shellcheck source=launch/setup.sh
. launch/setup.sh
# shellcheck source=launch/forward.sh
. launch/forward.sh
[ -n "${DDPBENCH_CONTAINER:-}" ] || prepare ""

HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD_NODE
# srun does not take the batch script's own share of cores by itself.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

command=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 bash launch/node.sh "$@")
printf '%s\n' "$(printf '%q ' "${command[@]}")" >&2

# srun passes SIGUSR1 on to every task. At scancel SLURM tells the tasks itself: this script only has to outlive them.
trap : TERM
carry_out USR1 "${command[@]}"
