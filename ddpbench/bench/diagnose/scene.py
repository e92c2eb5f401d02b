"""What the experiments of a diagnosis stand on, and how one of them is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpbench.bench.diagnose.loaders import LoaderFactories
from ddpbench.bench.ground import JobContext
from ddpbench.bench.journal import DiagnosisField
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.record.config import ResolvedConfig

ACTIVATION_S = 2.0
"""What a turn takes beside its steps, about."""


@dataclass
class DiagnosisContext:
    """One diagnosis on one rank."""

    job_context: JobContext
    config: ResolvedConfig  # of the run that is diagnosed
    loader_factories: LoaderFactories
    window_s: float  # how long a loader is looked at
    loader_batch_s: float = (
        0.0  # the least that a step of the real run can take: what its loader alone takes for a batch on the slowest rank
    )
    batch_bytes: int = 0  # what a batch takes on the wire, where it crosses one
    alternatives: Sequence[ResolvedConfig] = ()  # other loaders for the run, on which all ranks have agreed

    @property
    def worker_batch_s(self) -> float:
        """What each worker takes for a batch, as far as that is known: the first comes as late, and bursts of them lie so far apart."""
        return max(1, self.config.workers) * self.loader_batch_s

    def loader_paced(self, round_plan: RoundPlan, config: ResolvedConfig, gain: float = 1.0) -> RoundPlan:
        """The same for a training that waits for its loader; of ``config``, which is to be ``gain`` times as fast as the real run."""
        step_s, workers = self.loader_batch_s / gain, config.workers
        round_plan = replace(round_plan, min_step_s=step_s)
        loading_s = (2 * max(1, workers) + round_plan.steps_per_round(0.0, workers)) * step_s
        return replace(round_plan, first_round_s=max(round_plan.first_round_s, ACTIVATION_S + loading_s))


@dataclass(frozen=True)
class DiagnosisExperiment:
    """One experiment: every rank carries it out, and rank 0 has its value.

    ``why_not`` tells every rank alike why it cannot be here, or nothing. ``measure`` may still raise ArmOver, on every rank.
    """

    field: DiagnosisField
    phase: str  # "measuring the loader alone"
    measure: Callable[[DiagnosisContext], object]
    base_s: float  # about, and beside it
    loader_windows: int = 0  # of looking at a loader
    skip_reason: Callable[[DiagnosisContext], str] = lambda scene: ""
    extra_s: Callable[[DiagnosisContext], float] = lambda scene: 0.0  # of what is not everywhere
    is_needed: Callable[[DiagnosisContext], bool] = lambda scene: True  # or the training itself tells what it would find

    def expected_s(self, context: DiagnosisContext) -> float:
        """How long it lasts, about."""
        return self.base_s + self.loader_windows * max(context.window_s, context.worker_batch_s) + self.extra_s(context)
