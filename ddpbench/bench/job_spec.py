"""What sets one command that measures arms apart from another. As it is here, it does nothing beside their rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.ground import JobContext
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
from ddpbench.report.pages.registry import PageRenderer

JournalFactory = Callable[[Request, list[Record]], Journal]


class JobSpec:
    """How a job begins, how its arms take their turns, and what comes before and after those. An arm is known by its label."""

    equal_rounds = False
    """Every arm has as many rounds as any other, or one less."""

    resumable = False
    """A second call goes on with the journal."""

    def __init__(self, open_journal: JournalFactory, render: PageRenderer) -> None:
        self.open_journal, self.render = open_journal, render

    def ranks_for(self, label: str, world: World) -> World:
        """The ranks that take part in that arm."""
        return world

    def before_rounds(self, context: JobContext) -> None:
        """What is measured before anybody trains."""

    def rounds_end_s(self, limit_s: float | None, elapsed_s: float) -> float | None:
        """When the last round must have ended, in seconds from the beginning of the Pace, which is ``elapsed_s`` ago; None for never."""
        return limit_s

    def after_rounds_s(self) -> float:
        """How long ``after_rounds`` takes, about."""
        return 0.0

    def round_plan(self, label: str) -> RoundPlan | None:
        """How that arm takes its turns, where it is not measured as a run is."""
        return None

    def loader_factory(self, label: str) -> LoaderFactory:
        return open_loader

    def leftover_factory(self, label: str) -> Callable[[Device], object] | None:
        """What makes what an earlier training has left on the device of that arm."""
        return None

    def make_arm(self, label: str, config: ResolvedConfig, world: World, marker: ProgressMarker, options: ArmOptions) -> Arm:
        return Arm(config, world, marker, options)

    def after_rounds(self, context: JobContext, arms: Sequence[Arm]) -> None:
        """What is measured when nobody trains any more."""

    def graded_records(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that the exit code is of."""
        return records


class ResumableJobSpec(JobSpec):
    """A job whose every round is a training of its own, in a file that the same command goes on with."""

    resumable = True
