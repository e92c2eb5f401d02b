"""Build shell commands from a record: the same run again, with other values, or a diagnosis."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ddpbench.analysis.controls import baseline_of
from ddpbench.record.config import USUAL_VALUES, Config
from ddpbench.record.environment import Environment
from ddpbench.record.flags import FlagField, flag_fields, spelled
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.text import mask_command

PROGRAM = "ddpbench"
RENDEZVOUS_PORT = 29500

TOP_COMMAND = "top -b -n 1 -o %CPU | head -15"
"""Shows which processes use the CPU of a host."""

CONFIG_FIELDS: Mapping[str, FlagField] = {field.name: field for field in flag_fields(Config)}
DATALOADER_FIELDS = ("workers", "prefetch", "pin_memory", "in_order", "persistent_workers", "resident", "decode_on_gpu", "ready_indices")
"""The fields of a Scenario that a change of a script's DataLoader, or of what it is made of, expresses."""

DEFAULT_CONFIG = Config(workload=PROGRAM)  # without any flag

JOB_LEVEL_FIELDS = {"diagnose": ("time_limit", "warmup"), "scale": ("time_limit",)}
"""Fields that apply to a whole job of that kind: commands for a follow-up run drop them."""

RUN_LENGTH_FLAGS = ("rounds", "steps", "epochs", "fresh", "validate", "warmup", "launches", "profile", "roofline", "fail_if_data_wait")
"""Fields that set how long a run is measured, and its gate: a diagnosis chooses that itself."""


@dataclass(frozen=True)
class CommandBuilder:
    """Builds commands from a record, the kind of its job, and the fields in which the arms of the job differ."""

    record: Record
    kind: str = "run"
    swept: Sequence[str] = ()
    ranks: int | None = None  # on one node; None for as many as the run had

    @classmethod
    def of(cls, record: Record, job: Job) -> CommandBuilder:
        """The builder for ``record`` of ``job``."""
        return cls(record, job.kind, job.swept)

    @property
    def requested(self) -> Config:
        """The requested Config, or the resolved one if an old record has none."""
        return self.record.requested or self.record.config

    def command(self, **values: Sequence[object]) -> str:
        """The command that repeats the run with ``values`` for some fields of its Config; empty for a script, which has no such flags.

        Several values of a field make arms, which one job interleaves and compares; an empty sequence drops the flag.
        """
        if self.record.script is not None:
            return ""
        return self._line([], values, JOB_LEVEL_FIELDS.get(self.kind, ()))

    def diagnose_command(self, **values: Sequence[object]) -> str:
        """The command that diagnoses the run, with ``values`` for some fields of its Config; empty for a script."""
        if self.record.script is not None:
            return ""
        return self._line(["diagnose"], values, (*RUN_LENGTH_FLAGS, *(() if self.kind == "diagnose" else ("time_limit",))))

    def has_flag(self, name: str) -> bool:
        """Whether the user chose the field ``name``: its value is not the usual one, or the job compares several."""
        return name in self.swept or getattr(self.requested, name) not in (getattr(DEFAULT_CONFIG, name), USUAL_VALUES.get(name))

    def _line(self, command: Sequence[str], values: Mapping[str, Sequence[object]], dropped: Sequence[str]) -> str:
        """The launcher, ``command``, the flags of the Config without those in ``dropped`` and ``values``, then the flags of ``values``."""
        requested, environment = self.requested, self.record.environment
        ranks = ["--gpus", str(self.ranks or environment.world_size)] if uses_gpus_flag(environment) else []
        if ranks and environment.device_type == "cpu":
            requested = msgspec.structs.replace(requested, device="cpu")  # otherwise --gpus would request as many GPUs
        if values.get("loader", (requested.loader,)) == (SYNTHETIC,):
            dropped = (*dropped, "data_dir", "download")
        kept = msgspec.structs.replace(requested, **{name: getattr(DEFAULT_CONFIG, name) for name in (*dropped, *values)})
        changed = [word for name, arms in values.items() for word in spelled(CONFIG_FIELDS[name], arms)]
        start = [*([] if "threads" in values else omp_threads_prefix(environment, requested.cores)), *launcher_argv(environment)]
        return shlex.join(mask_command([*start, *command, *kept.to_argv(), *ranks, *changed]))


def uses_gpus_flag(environment: Environment) -> bool:
    """Whether the command uses ``--gpus N``: for the ranks of one node outside SLURM, however they were launched.

    An Environment does not record whether ``--gpus`` or torchrun launched them, and torchrun does not work with ``--launches`` and
    ``--apply``.
    """
    return environment.nodes == 1 and environment.launcher not in ("python", "slurm")


def launcher_argv(environment: Environment) -> list[str]:
    """The words before the workload.

    A SLURM job is submitted again, from the root of a clone. With several nodes outside SLURM, the command is to be run on each node, with
    the rendezvous on the first.
    """
    nodes = environment.nodes
    if environment.launcher == "slurm":
        return ["sbatch", *([f"--nodes={nodes}", "launch/slurm_multi_node.sbatch"] if nodes > 1 else ["launch/slurm_single_node.sbatch"])]
    if nodes == 1:
        return [PROGRAM]
    first_host = environment.placements[0].host.partition("#")[0]  # its network name
    rendezvous = [f"--nnodes={nodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint={first_host}:{RENDEZVOUS_PORT}"]
    return ["torchrun", *rendezvous, f"--nproc_per_node={environment.world_size // nodes}", "-m", PROGRAM]


def default_threads(usable_cores: float, ranks: int, cores_per_rank: int | None) -> int:
    """Compute threads of each of the CPU ``ranks`` that ``--gpus`` starts on one node; ``--cores`` is the most of each."""
    shared = max(1, int(usable_cores / ranks))
    return min(shared, cores_per_rank) if cores_per_rank else shared


def omp_threads_prefix(environment: Environment, cores_per_rank: int | None) -> list[str]:
    """OMP_NUM_THREADS of CPU ranks, unless the launcher sets the same value.

    ``--gpus`` divides the cores among the ranks. torchrun sets 1 for several ranks per node; one rank alone keeps all cores.
    """
    if environment.device_type != "cpu" or environment.launcher == "slurm":  # a SLURM script sets its own
        return []
    launcher_default = "1" if environment.world_size > environment.nodes else ""
    if uses_gpus_flag(environment):
        launcher_default = str(default_threads(environment.placements[0].usable_cores, environment.world_size, cores_per_rank))
    num_threads = environment.variables.get("OMP_NUM_THREADS", launcher_default)
    return [] if num_threads == launcher_default else [f"OMP_NUM_THREADS={num_threads}"]


def config_fields(scenario: Scenario) -> dict[str, object]:
    """Return the fields of Config that ``scenario`` changes."""
    values = {name: getattr(scenario, name) for name in scenario.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None and name in CONFIG_FIELDS}


def is_runnable(scenario: Scenario) -> bool:
    """Whether flags of a run, or arguments of a script's DataLoader, can express all of ``scenario``.

    More cores or ranks need another machine or launch.
    """
    return all(getattr(scenario, name) is None or name in (*CONFIG_FIELDS, *DATALOADER_FIELDS) for name in scenario.__struct_fields__)


def command_with(job: Job, scenario: Scenario) -> str:
    """Return the command that runs the baseline of ``job`` with ``scenario``."""
    record = baseline_of(job)
    assert record is not None, "predictions belong to a diagnosis"
    return CommandBuilder.of(record, job).command(**{name: (value,) for name, value in config_fields(scenario).items()})
