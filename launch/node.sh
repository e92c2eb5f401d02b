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
# shellcheck source=launch/forward.sh
. "$root/launch/forward.sh"

# launcher NODES HEAD JOB THIS_NODE: torchrun and its flags, one word a line. Where the ranks meet comes from the job: its id
# names the meeting, and picks a port below the range that systems hand out by themselves.
launcher() {
  local ranks python=("$venv/bin/python") container
  ranks=$(count_gpus)
  [ "$ranks" -gt 0 ] || ranks=2
  if [ -n "${DDPBENCH_CONTAINER:-}" ]; then
    read -ra container <<<"$DDPBENCH_CONTAINER"
    python=("${container[@]}" python)
  fi
  printf '%s\n' "${python[@]}" -m torch.distributed.run --nnodes="$1" --nproc_per_node="$ranks" --max-restarts=0 \
    --rdzv_backend=c10d --rdzv_id="$3" --rdzv_endpoint="$2:$((10000 + $3 % 20000))" --rdzv_conf=is_host="$([ "$4" -eq 0 ] && echo 1 || echo 0)" \
    --local_addr="${SLURMD_NODENAME:-$(hostname)}"
}

main() {
  local command
  mapfile -t command < <(launcher "${SLURM_JOB_NUM_NODES:-1}" "${HEAD_NODE:-localhost}" "${SLURM_JOB_ID:-1}" "${SLURM_NODEID:-0}")
  command+=(-m ddpbench "$@")
  printf 'node %s:%s\n' "${SLURM_NODEID:-0}" "$(printf ' %q' "${command[@]}")" >&2
  export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 # torchrun's --signals-to-handle: those it gives to the ranks
  carry_out "USR1 TERM" "${command[@]}"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  main "$@"
fi
