"""The environment variables that ddpbench reads or sets, each with its meaning: the only place that names them."""

from __future__ import annotations

from enum import Enum

from typing_extensions import Self


class EnvVar(str, Enum):
    """An environment variable. The member is its name; ``set_by`` and ``meaning`` are text for the reference."""

    set_by: str
    meaning: str

    def __new__(cls, name: str, set_by: str, meaning: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.set_by = set_by
        member.meaning = meaning
        return member

    def __str__(self) -> str:
        return str(self.value)

    COLUMNS = "COLUMNS", "user", "width of reports and help; default: that of the terminal, at most 100, or 80 without a terminal"
    XDG_CACHE_HOME = "XDG_CACHE_HOME", "user", "absolute path of the cache folder, for generated datasets; default: ~/.cache"
    OMP_NUM_THREADS = (
        "OMP_NUM_THREADS",
        "user",
        "CPU compute threads per rank without --threads; if it is not set, --gpus divides the cores among CPU ranks",
    )
    CUDA_DEVICE_MAX_CONNECTIONS = (
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "user",
        "hardware queues from host to GPU; if it is not set, 32 with dali-gpu, and in diagnose WORKLOAD if it may try dali-gpu",
    )
    NCCL_DEBUG = (
        "NCCL_DEBUG",
        "user",
        "level of NCCL's log; unless the user sets it, INFO while NCCL connects, to record how gradients travel",
    )
    NCCL_DEBUG_FILE = "NCCL_DEBUG_FILE", "user", "file of NCCL's log; read if NCCL_DEBUG is INFO or TRACE, otherwise kept in memory"
    NCCL_DEBUG_SUBSYS = "NCCL_DEBUG_SUBSYS", "user", "parts of NCCL's log; set together with NCCL_DEBUG"
    KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL", "user", "log level of torch.profiler; on CPU ranks 99 (silent) if it is not set"
    PET_SIGNALS_TO_HANDLE = (
        "PET_SIGNALS_TO_HANDLE",
        "user",
        "signals that torchrun forwards to its ranks; --gpus adds SIGUSR1, SLURM's warning, if it is not set",
    )
    PET_LOG_DIR = "PET_LOG_DIR", "user", "folder of torchrun's log files; --gpus uses one that it removes at the end, if it is not set"

    RANK = "RANK", "launcher", "rank of this process; without it and WORLD_SIZE the process trains alone"
    WORLD_SIZE = "WORLD_SIZE", "launcher", "number of ranks"
    LOCAL_RANK = "LOCAL_RANK", "launcher", "rank on this node, and index of its GPU"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE", "launcher", "number of ranks on this node"
    GROUP_RANK = "GROUP_RANK", "launcher", "index of this node"
    MASTER_ADDR = "MASTER_ADDR", "launcher", "host of the rendezvous; default: 127.0.0.1"
    MASTER_PORT = "MASTER_PORT", "launcher", "port of the rendezvous; default: 29500"
    TORCHELASTIC_USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE", "launcher", "True if torchrun itself serves the rendezvous store"
    TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT", "launcher", "how often torchrun has restarted the ranks"
    TORCHELASTIC_ERROR_FILE = "TORCHELASTIC_ERROR_FILE", "launcher", "file to which a rank writes its error message for torchrun"
    TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID", "launcher", "set by torchrun: the command started when torchrun did"
    ACCELERATE_MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION", "launcher", "set by accelerate launch: identifies the launcher"

    SLURM_JOB_ID = "SLURM_JOB_ID", "SLURM", "identifies SLURM as the launcher"
    SLURM_JOB_NUM_NODES = "SLURM_JOB_NUM_NODES", "SLURM", "nodes of the job; a single rank on several nodes is a warning"
    SLURM_STEP_NUM_TASKS = "SLURM_STEP_NUM_TASKS", "SLURM", "tasks of the step; several tasks without RANK are refused"
    SLURM_PROCID = "SLURM_PROCID", "SLURM", "index of the task; only task 0 prints an error about the variables"
    SLURM_CPUS_ON_NODE = "SLURM_CPUS_ON_NODE", "SLURM", "cores of the job on this node, an upper limit of the usable cores"
    SLURMD_NODENAME = "SLURMD_NODENAME", "SLURM", "host name in records; default: that of the system"

    DDPBENCH_EXIT_STATUS = (
        "DDPBENCH_EXIT_STATUS",
        "ddpbench",
        "file to which ranks started by ddpbench write their exit code, because torchrun turns every failure into 1",
    )
    DDPBENCH_SCRATCH = "DDPBENCH_SCRATCH", "ddpbench", "scratch folder of diagnose SCRIPT, for ranks started by ddpbench"
    DDPBENCH_AB = "DDPBENCH_AB", "ddpbench", "what a launch of ab does: the sources to compile, and whether it computes only"
    DDPBENCH_FOLLOWS = (
        "DDPBENCH_FOLLOWS",
        "ddpbench",
        "seconds that the ab which ends a diagnosis may take",
    )
    TMPDIR = "TMPDIR", "ddpbench", "folder of temporary files; diagnose SCRIPT sets it to a part of its scratch folder"
    TORCHINDUCTOR_CACHE_DIR = (
        "TORCHINDUCTOR_CACHE_DIR",
        "user",
        "cache of torch.compile, which a diagnosed script may write; default: torch's own",
    )
    TRITON_HOME = "TRITON_HOME", "user", "folder of Triton's cache, which a diagnosed script may write; default: the home folder"
    PYTHONDONTWRITEBYTECODE = "PYTHONDONTWRITEBYTECODE", "ddpbench", "set by diagnose SCRIPT, so that no process writes bytecode"
    GIT_OPTIONAL_LOCKS = "GIT_OPTIONAL_LOCKS", "ddpbench", "set to 0 by diagnose SCRIPT, so that git status does not write its index"
    CUDA_MPS_PIPE_DIRECTORY = (
        "CUDA_MPS_PIPE_DIRECTORY",
        "user",
        "pipes of CUDA's Multi-Process Service, which a diagnosed script may use; default: /tmp/nvidia-mps",
    )
    DDPBENCH_BEGAN = "DDPBENCH_BEGAN", "ddpbench", "start of the command in seconds since boot, for ranks started by ddpbench"
