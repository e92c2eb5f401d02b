#!/usr/bin/env bash
# One node's share of a SLURM job: torchrun with a rank a GPU, or two CPU ranks. srun starts one of these a node.
#
# Words are those of ddpbench. SIGUSR1 (SLURM's warning ahead of the time limit) and SIGTERM reach the ranks, which end the run
# as interrupted and keep its finished rounds.
#
#   DDPBENCH_CONTAINER="apptainer exec --nv ddpbench.sif"    runs the container's own python in place of .venv's
set -euo pipefail
# shellcheck source=launch/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

main() {
  local ranks command=("$venv/bin/python")
  ranks=$(count_gpus)
  if [ "$ranks" -eq 0 ]; then
    ranks=2
    share_cores
  fi
  if [ -n "${DDPBENCH_CONTAINER:-}" ]; then
    read -ra command <<<"$DDPBENCH_CONTAINER python"
  fi
  # The ranks of the first node come first and are where all meet. The job's id names the meeting, and picks the port below those
  # that systems hand out.
  command+=(-m torch.distributed.run --nnodes="$SLURM_JOB_NUM_NODES" --node_rank="$SLURM_NODEID" --nproc_per_node="$ranks"
    --rdzv_id="$SLURM_JOB_ID" --rdzv_conf=timeout=300 --master_addr="$HEAD_ADDRESS" --master_port="$((10000 + SLURM_JOB_ID % 20000))" --max_restarts=0 -m ddpbench "$@")
  printf 'node %s:%s\n' "$SLURM_NODEID" "$(printf ' %q' "${command[@]}")" >&2
  export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 # torchrun's --signals-to-handle: those it gives to the ranks
  exec "${command[@]}" # SLURM signals every process of the node: none may stand between it and torchrun
}

main "$@"
