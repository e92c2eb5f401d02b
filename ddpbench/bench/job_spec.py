"""What sets one command that measures arms apart from another. As it is here, it does nothing beside their rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddpbench.bench.arm import Arm
from ddpbench.bench.ground import Ground
from ddpbench.bench.journal import Journal
from ddpbench.bench.round_plan import Brief
from ddpbench.bench.terms import Terms
from ddpbench.data.loader import Opener
from ddpbench.data.loaders.open import open_loader
from ddpbench.distributed.world import World
from ddpbench.machine.device import Device
from ddpbench.machine.progress_marker import Pulse
from ddpbench.record.record import Record
from ddpbench.record.request import Request
from ddpbench.record.resolved import Settled
from ddpbench.report.pages.registry import Render

OpenJournal = Callable[[Request, list[Record]], Journal]


class Recipe:
    """How a job begins, how its arms take their turns, and what comes before and after those. An arm is known by its label."""

    even = False
    """Every arm has as many rounds as any other, or one less."""

    continued = False
    """A second call goes on with the journal."""

    def __init__(self, open_journal: OpenJournal, render: Render) -> None:
        self.open_journal, self.render = open_journal, render

    def among(self, label: str, whole: World) -> World:
        """The ranks that take part in that arm."""
        return whole

    def before_rounds(self, ground: Ground) -> None:
        """What is measured before anybody trains."""

    def rounds_end_s(self, limit_s: float | None, spent_s: float) -> float | None:
        """When the last round must have ended, in seconds from the beginning of the Pace, which is ``spent_s`` ago; None for never."""
        return limit_s

    def after_rounds_s(self) -> float:
        """How long ``after_rounds`` takes, about."""
        return 0.0

    def brief(self, label: str) -> Brief | None:
        """How that arm takes its turns, where it is not measured as a run is."""
        return None

    def opener(self, label: str) -> Opener:
        return open_loader

    def beside(self, label: str) -> Callable[[Device], object] | None:
        """What makes what an earlier training has left on the device of that arm."""
        return None

    def arm(self, label: str, config: Settled, world: World, pulse: Pulse, terms: Terms) -> Arm:
        return Arm(config, world, pulse, terms)

    def after_rounds(self, ground: Ground, arms: Sequence[Arm]) -> None:
        """What is measured when nobody trains any more."""

    def answers(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that the exit code is of."""
        return records


class ContinuedRecipe(Recipe):
    """A job whose every round is a training of its own, in a file that the same command goes on with."""

    continued = True
