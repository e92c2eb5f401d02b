"""Rank, world size and rendezvous address of this process: the only reader of launcher variables."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import UsageError

LAUNCH_HINT = "start with torchrun or --gpus N"


@dataclass(frozen=True)
class RankEnv:
    """Rank and rendezvous address of one process, as set by its launcher."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "python"  # python, torchrun, accelerate, slurm
    master_addr: str = ""  # address of the store; empty without a launcher
    master_port: int = 0
    uses_agent_store: bool = False  # the launcher itself serves the store at master_addr:master_port
    restart_count: str = "0"
    error_file: str = ""  # file from which torchrun reads the error message
    host: str = ""

    @property
    def launched(self) -> bool:
        """Whether a launcher started this rank. If so, there is a process group even for a world size of 1."""
        return bool(self.master_addr)

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which prints on behalf of all ranks."""
        return self.rank == 0


def from_env(variables: Mapping[str, str] = os.environ) -> RankEnv:
    """The RankEnv that ``variables`` describe.

    Raises UsageError for invalid variables, and if a launcher started several processes, or one instead of several, without
    a rank.
    """
    host = variables.get(EnvVar.SLURMD_NODENAME) or socket.gethostname()
    if EnvVar.RANK not in variables or EnvVar.WORLD_SIZE not in variables:
        _refuse_unranked_tasks(variables)
        return RankEnv(host=host)
    rank_env = RankEnv(
        rank=_int_variable(variables, EnvVar.RANK),
        world_size=_int_variable(variables, EnvVar.WORLD_SIZE),
        local_rank=_int_variable(variables, EnvVar.LOCAL_RANK, "0"),
        local_world_size=_int_variable(variables, EnvVar.LOCAL_WORLD_SIZE, "1"),
        node_rank=_int_variable(variables, EnvVar.GROUP_RANK, "0"),
        launcher=_detect_launcher(variables),
        master_addr=variables.get(EnvVar.MASTER_ADDR, "127.0.0.1"),
        master_port=_int_variable(variables, EnvVar.MASTER_PORT, "29500"),
        uses_agent_store=variables.get(EnvVar.TORCHELASTIC_USE_AGENT_STORE) == "True",
        restart_count=variables.get(EnvVar.TORCHELASTIC_RESTART_COUNT, "0"),
        error_file=variables.get(EnvVar.TORCHELASTIC_ERROR_FILE, ""),
        host=host,
    )
    if rank_env.master_port >= 2**16:
        raise UsageError(f"MASTER_PORT={rank_env.master_port} is not a valid port", LAUNCH_HINT)
    if rank_env.rank >= rank_env.world_size:
        raise UsageError(
            f"RANK={rank_env.rank} is out of range for WORLD_SIZE={rank_env.world_size}: RANK counts from 0 and WORLD_SIZE from 1",
            LAUNCH_HINT,
        )
    return rank_env


def _int_variable(variables: Mapping[str, str], name: EnvVar, default: str | None = None) -> int:
    text = variables[name] if default is None else variables.get(name, default)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"launcher variable is not a number: {name}={text}", LAUNCH_HINT)
    return int(text)


def _refuse_unranked_tasks(variables: Mapping[str, str]) -> None:
    """Raise UsageError for one of several independent processes, and for one process where several were requested."""
    tasks = _int_variable(variables, EnvVar.SLURM_STEP_NUM_TASKS, "1")
    if tasks > 1:
        raise UsageError(
            f"{tasks} tasks would each run alone: srun started them without torchrun",
            "run one task per node with torchrun inside: sbatch launch/slurm_multi_node.sbatch WORKLOAD",
        )
    if EnvVar.ACCELERATE_MIXED_PRECISION in variables and _sets_master_addr(variables):
        raise UsageError(
            "accelerate launch was asked for several processes but started one, as it does with fewer than two GPUs or with --cpu",
            "for CPU ranks: accelerate launch --multi_gpu --num_processes=N -m ddpbench WORKLOAD --device cpu",
        )


def _sets_master_addr(variables: Mapping[str, str]) -> bool:
    """Whether the launcher set MASTER_ADDR itself, as it does for several processes, instead of inheriting it."""
    import psutil  # not needed by commands that start no ranks

    try:
        parent_environ = psutil.Process(os.getppid()).environ()
    except psutil.Error:
        parent_environ = {}
    return bool(variables.get(EnvVar.MASTER_ADDR) != parent_environ.get(EnvVar.MASTER_ADDR))


def _detect_launcher(variables: Mapping[str, str]) -> str:
    if EnvVar.SLURM_JOB_ID in variables:
        return "slurm"
    return "accelerate" if EnvVar.ACCELERATE_MIXED_PRECISION in variables else "torchrun"
