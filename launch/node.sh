#!/usr/bin/env bash
# One node of a SLURM job: torchrun with one rank per GPU, or two CPU ranks. srun starts one per node.
#
# Takes the arguments of ddpbench. SIGUSR1 (SLURM's warning ahead of the time limit) and SIGTERM reach the ranks, which end the run
# as interrupted and keep its finished rounds.
#
#   DDPBENCH_CONTAINER="apptainer exec --nv ddpbench.sif"    uses the Python of the container instead of .venv
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

main() {
  local ranks cores command=("$venv/bin/python")
  ranks=$(count_gpus)
  if [ "$ranks" -eq 0 ]; then
    ranks=2
    cores=$(nproc)
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))} # torchrun would give each rank a single thread
  fi
  if [ -n "${DDPBENCH_CONTAINER:-}" ]; then
    read -ra command <<<"$DDPBENCH_CONTAINER python"
  fi
  # Rendezvous on the first node, which has the first ranks. The job ID is the rendezvous ID and selects a port below the ephemeral
  # range.
  command+=(-m torch.distributed.run --nnodes="$SLURM_JOB_NUM_NODES" --node_rank="$SLURM_NODEID" --nproc_per_node="$ranks"
    --rdzv_id="$SLURM_JOB_ID" --rdzv_conf=timeout=300 --master_addr="$HEAD_ADDRESS" --master_port="$((10000 + SLURM_JOB_ID % 20000))" --max_restarts=0 -m ddpbench "$@")
  printf 'node %s:%s\n' "$SLURM_NODEID" "$(masked "${command[@]}")" >&2
  export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 # torchrun's --signals-to-handle: signals it forwards to the ranks
  exec "${command[@]}" # SLURM signals every process of the node, so no shell may stay between it and torchrun
}

main "$@"
