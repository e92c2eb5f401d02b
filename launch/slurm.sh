# shellcheck shell=bash
# What the SLURM scripts share: the environment made once, then one node.sh a node. Sourced, with ddpbench's words, from the
# root of the clone, which is where sbatch was called: SLURM runs a copy of the script from a folder of its own.

# shellcheck source=launch/setup.sh
. launch/setup.sh
[ -n "${DDPBENCH_CONTAINER:-}" ] || prepare ""

# Where the ranks meet: the first node, by the address that SLURM itself reaches it at. Its name need not resolve anywhere.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD_ADDRESS=$(scontrol --oneliner show node "$head" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p') || true
export HEAD_ADDRESS=${HEAD_ADDRESS:-$head}
# srun does not take the batch script's own share of cores by itself.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

command=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 bash launch/node.sh "$@")
printf '%s\n' "$(printf '%q ' "${command[@]}")" >&2
exec "${command[@]}"
