"""A job: the context that its measurements share on a rank, and how its arms take their turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.journal import Journal
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.data.loader import LoaderFactory
from ddpbench.data.loaders.open import open_loader
from ddpbench.distributed.world import World
from ddpbench.machine.device import Device
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import Record
from ddpbench.record.request import Request
from ddpbench.record.roles import Role
from ddpbench.report.progress import Progress


@dataclass(frozen=True)
class JobContext:
    """What all measurements on one rank share; only rank 0 has a ``journal``."""

    configs: Sequence[ResolvedConfig]  # of all arms
    world: World
    marker: ProgressMarker
    journal: Journal | None
    progress: Progress
    start: float  # start of the command on the perf_counter clock, plus the time spent generating a dataset

    def enter_phase(self, phase: str, text: str) -> None:
        """Begin work outside the rounds: ``phase`` for the watchdog, ``text`` for the progress display."""
        self.marker.enter(phase)
        self.progress.stage(text)


JournalFactory = Callable[[Request, list[Record]], Journal]


class JobSpec:
    """How a job begins, how its arms take their turns, and what runs before and after them; arms are identified by role."""

    equal_rounds = False
    """Whether arms end with equal numbers of rounds, give or take one: if one runs out of time, all stop after that turn."""

    resumable = False
    """Whether running the same command again resumes the journal."""

    def __init__(self, open_journal: JournalFactory) -> None:
        self.open_journal = open_journal

    def ranks_for(self, role: Role, world: World) -> World:
        """The ranks that take part in that arm."""
        return world

    def before_rounds(self, context: JobContext) -> None:
        """Run what comes before the first round."""

    def rounds_end_s(self, limit_s: float | None, elapsed_s: float) -> float | None:
        """Deadline of the last round, in seconds on the RoundTimer, which now reads ``elapsed_s``; None for no deadline."""
        return limit_s

    def after_rounds_s(self) -> float:
        """Estimated seconds that ``after_rounds`` takes."""
        return 0.0

    def round_plan(self, role: Role) -> RoundPlan | None:
        """Length and number of that arm's rounds; None for the defaults of ``run``."""
        return None

    def loader_factory(self, role: Role) -> LoaderFactory:
        return open_loader

    def leftover_factory(self, role: Role) -> Callable[[Device], object] | None:
        """Recreates what an earlier model would have left on that arm's device; None for nothing."""
        return None

    def make_arm(self, role: Role, config: ResolvedConfig, world: World, marker: ProgressMarker, options: ArmOptions) -> Arm:
        return Arm(config, world, marker, options)

    def after_rounds(self, context: JobContext, arms: Sequence[Arm]) -> None:
        """Run what comes after the last round."""

    def graded_records(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that decide the exit code."""
        return records


class ResumableJobSpec(JobSpec):
    """A job that trains from scratch in every round; running the same command again resumes its file."""

    resumable = True
