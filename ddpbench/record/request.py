"""A command's request: its arms, its shard of a sweep, and where records and report go."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ddpbench.record.config import MEASURING, RANKS, Above0, Config, Positive
from ddpbench.record.flags import Flag
from ddpbench.record.ranges import AtLeastOne, Parts
from ddpbench.record.roles import RUN, Role


class SweepShard(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a sweep that a job measures, numbered from 1. Part K of N is sweep point K and every N-th after it."""

    parts: list[AtLeastOne]
    num_parts: Parts
    num_sweep_points: Parts  # in the full sweep
    sweep_id: str  # equal only for parts of the same sweep

    @property
    def indices(self) -> list[int]:
        """Indices of its sweep points in the full sweep, from 0."""
        return [index for index in range(self.num_sweep_points) if self.part_for(index) in self.parts]

    @property
    def missing_parts(self) -> list[int]:
        """The numbers of the other parts."""
        return [number for number in range(1, self.num_parts + 1) if number not in self.parts]

    def part_for(self, index: int) -> int:
        """The number of the part with sweep point ``index``."""
        return index % self.num_parts + 1


OUTPUT = "Output"

TORCHRUN_MODULE = "ddpbench.bench.torchrun"
"""The module with which --gpus starts ranks. Ranks find it in their parent's command line and recover the typed command."""


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that do not change an arm: how ranks are started and where results go."""

    gpus: Annotated[
        Annotated[int, Positive] | None,
        Flag(RANKS, "launch N ranks with torchrun", metavar="N", automatic="none: use the ranks of the launcher"),
    ] = None
    output_dir: Annotated[str, Flag(OUTPUT, "folder for records", "-o", metavar="DIR")] = "results/runs"
    json: Annotated[
        str | None,
        Flag(OUTPUT, "also write the record to PATH; with '-' to stdout, and the report to stderr", metavar="PATH", automatic="none"),
    ] = None
    summary: Annotated[
        str | None, Flag(OUTPUT, "also write the summary for programs (docs/summary.md) to PATH", metavar="PATH", automatic="none")
    ] = None
    force: Annotated[bool, Flag(OUTPUT, "overwrite an existing --json or --summary file")] = False
    quiet: Annotated[bool, Flag(OUTPUT, "print only the result", "-q")] = False
    verbose: Annotated[bool, Flag(OUTPUT, "print every check, setting, note and hint", "-v")] = False
    redact: Annotated[bool, Flag(OUTPUT, "leave host, user, paths and command out of record and report")] = False


class DiagnoseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``diagnose`` only."""

    verify: Annotated[bool, Flag(MEASURING, "try the most promising remedies and measure their gain", sweep=False)] = True
    apply: Annotated[bool, Flag(MEASURING, "finish with a full run of the best setting", sweep=False)] = False


class ScriptDiagnoseOptions(DiagnoseOptions, frozen=True, kw_only=True):
    """Flags of ``diagnose SCRIPT`` only."""

    start_limit: Annotated[
        Annotated[float, Above0],
        Flag(MEASURING, "end a script that makes no optimizer step within S seconds of its start", metavar="S", sweep=False),
    ] = 600.0
    allow_numerics: Annotated[
        bool, Flag(MEASURING, "also advise settings that compute in another precision, such as autocast", sweep=False)
    ] = False


class AbOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``ab`` only."""

    diff: Annotated[
        str | None, Flag(MEASURING, "the change to try, as git diff writes it", metavar="FILE", automatic="required", sweep=False)
    ] = None
    steps: Annotated[Annotated[int, Positive], Flag(MEASURING, "batches of each launch", metavar="N", sweep=False)] = 200
    pairs: Annotated[Annotated[int, Meta(ge=2, le=20)], Flag(MEASURING, "launches of each side, in turn", metavar="N", sweep=False)] = 2
    compute_only: Annotated[bool, Flag(MEASURING, "give every launch its first batches again and again: computing alone", sweep=False)] = (
        False
    )


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``scale`` only."""

    strong: Annotated[bool, Flag(MEASURING, "strong scaling: split the batch of one rank (-b) among all ranks", sweep=False)] = False


SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``watch`` only."""

    steps: Annotated[
        Annotated[int, Positive] | None,
        Flag(MEASURING, "end the script after N batches of its training loader", metavar="N", automatic="none", sweep=False),
    ] = None
    every: Annotated[
        Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,5}[smh]$")] | None,
        Flag(
            MEASURING,
            "print a line with throughput and data wait at this interval",
            metavar="TIME",
            automatic="one line, after 30s",
            sweep=False,
            form="a time such as 30s, 5m or 1h",
        ),
    ] = None
    hang_timeout: Annotated[
        Annotated[float, Above0] | None,
        Flag(
            MEASURING,
            "end all ranks after S seconds without progress in a step; 2.5x for the first step",
            metavar="S",
            automatic="none: only report it",
            sweep=False,
        ),
    ] = None

    @property
    def every_s(self) -> float | None:
        """``every`` in seconds."""
        return float(self.every[:-1]) * SECONDS_PER_UNIT[self.every[-1]] if self.every else None


class CrossoverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``crossover`` only. ``devices`` and ``threads`` are empty if not given."""

    family: str  # "disc-mlp"
    layers: range  # of its models
    devices: list[str] = []
    threads: list[int] = []


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One command, with its arms in the requested order."""

    arms: list[Config]
    output: OutputOptions
    command: list[str]  # exact, as typed
    swept: list[str] = []  # the Config fields that a comma list varies
    roles: list[Role] = []  # one per arm, or empty if all are ordinary arms
    sweep_shard: SweepShard | None = None  # set if other jobs have the other arms

    @property
    def arm_roles(self) -> list[Role]:
        """The role of each arm."""
        return self.roles or [RUN] * len(self.arms)

    @property
    def total_arms(self) -> int:
        """Number of arms, including those of other jobs of the sweep."""
        return self.sweep_shard.num_sweep_points if self.sweep_shard else len(self.arms)

    @property
    def spawns_processes(self) -> bool:
        """Whether the request runs in new processes instead of this one."""
        return bool(self.output.gpus) or self.arms[0].launches > 1
