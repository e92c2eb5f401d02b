"""What the experiments of a diagnosis stand on, and how one of them is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpbench.bench.diagnose.loaders import Openers
from ddpbench.bench.ground import Ground
from ddpbench.bench.learned import Finding
from ddpbench.bench.round_plan import Brief
from ddpbench.record.resolved import Settled

ENTERING_S = 2.0
"""What a turn takes beside its steps, about."""


@dataclass
class Scene:
    """One diagnosis on one rank."""

    ground: Ground
    config: Settled  # of the run that is diagnosed
    openers: Openers
    window_s: float  # how long a loader is looked at
    batch_s: float = 0.0  # the least that a step of the real run can take: what its loader alone takes for a batch on the slowest rank
    batch_bytes: int = 0  # what a batch takes on the wire, where it crosses one
    others: Sequence[Settled] = ()  # other loaders for the run, on which all ranks have agreed

    @property
    def turn_s(self) -> float:
        """What each worker takes for a batch, as far as that is known: the first comes as late, and bursts of them lie so far apart."""
        return max(1, self.config.workers) * self.batch_s

    def paced(self, brief: Brief, config: Settled, gain: float = 1.0) -> Brief:
        """The same for a training that waits for its loader; of ``config``, which is to be ``gain`` times as fast as the real run."""
        step_s, workers = self.batch_s / gain, config.workers
        brief = replace(brief, step_s=step_s)
        loading_s = (2 * max(1, workers) + brief.steps(0.0, workers)) * step_s
        return replace(brief, first_round_s=max(brief.first_round_s, ENTERING_S + loading_s))


@dataclass(frozen=True)
class Experiment:
    """One experiment: every rank carries it out, and rank 0 has its value.

    ``why_not`` tells every rank alike why it cannot be here, or nothing. ``measure`` may still raise ArmOver, on every rank.
    """

    field: Finding
    doing: str  # "measuring the loader alone"
    measure: Callable[[Scene], object]
    takes_s: float  # about, and beside it
    windows: int = 0  # of looking at a loader
    why_not: Callable[[Scene], str] = lambda scene: ""
    more_s: Callable[[Scene], float] = lambda scene: 0.0  # of what is not everywhere
    is_needed: Callable[[Scene], bool] = lambda scene: True  # or the training itself tells what it would find

    def costs_s(self, scene: Scene) -> float:
        """How long it lasts, about."""
        return self.takes_s + self.windows * max(scene.window_s, scene.turn_s) + self.more_s(scene)
