"""Which rank this process is: the only reader of the variables that launchers set."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.record.errors import UsageError


@dataclass(frozen=True)
class Seat:
    """One process's place among the ranks, before any of them has met."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "python"  # python, torchrun, accelerate, slurm
    address: str = ""  # where the ranks meet; empty without a launcher
    port: int = 0
    agent_store: bool = False  # the launcher itself serves the store at address:port
    attempt: str = "0"
    error_file: str = ""  # where torchrun reads the text of a failure
    host: str = ""

    @property
    def launched(self) -> bool:
        """Whether a launcher started this rank, so that a process group is wanted even for a world of one."""
        return bool(self.address)

    @property
    def speaks(self) -> bool:
        """Whether this is the process that prints what all ranks would print."""
        return self.rank == 0


def take_seat(variables: Mapping[str, str] = os.environ) -> Seat:
    """The seat that ``variables`` describe. Raises UsageError for srun without torchrun and for broken variables."""
    host = variables.get("SLURMD_NODENAME") or socket.gethostname()
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        tasks = int(variables.get("SLURM_STEP_NUM_TASKS", "1"))
        if tasks > 1:
            raise UsageError(
                f"{tasks} tasks would each run alone: srun started them without torchrun",
                "one task a node with torchrun inside: sbatch launch/slurm_multi_node.sbatch WORKLOAD",
            )
        return Seat(host=host)
    try:
        world_size, local_world_size = int(variables["WORLD_SIZE"]), int(variables.get("LOCAL_WORLD_SIZE", "1"))
        return Seat(
            rank=int(variables["RANK"]),
            world_size=world_size,
            local_rank=int(variables.get("LOCAL_RANK", "0")),
            local_world_size=local_world_size,
            node_rank=int(variables.get("GROUP_RANK", "0")),
            launcher=_launcher(variables),
            address=variables.get("MASTER_ADDR", "127.0.0.1"),
            port=int(variables.get("MASTER_PORT", "29500")),
            agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
            error_file=variables.get("TORCHELASTIC_ERROR_FILE", ""),
            host=host,
        )
    except ValueError as problem:
        raise UsageError(f"a launcher's variable is no number: {problem}", "start through torchrun, or with --gpus N") from problem


def _launcher(variables: Mapping[str, str]) -> str:
    if "SLURM_JOB_ID" in variables:
        return "slurm"
    return "accelerate" if "ACCELERATE_MIXED_PRECISION" in variables else "torchrun"
