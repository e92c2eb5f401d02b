"""Context of a diagnosis on one rank, and the description of one experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpbench.bench.diagnose.loaders import LoaderFactories
from ddpbench.bench.job_spec import JobContext
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.roles import Measurement, SkipReason

ACTIVATION_S = 2.0
"""Approximate seconds of a turn besides its steps."""


@dataclass
class DiagnosisContext:
    """One diagnosis on one rank."""

    job_context: JobContext
    requested: Config  # of the run that is diagnosed
    config: ResolvedConfig  # what it resolves to
    loader_factories: LoaderFactories
    window_s: float  # length of a loader benchmark
    loader_batch_s: float = 0.0  # loader benchmark's time per batch on the slowest rank, a lower bound of the run's step
    batch_bytes: int = 0  # bytes copied to the device per batch; 0 if none are
    alternatives: Sequence[ResolvedConfig] = ()  # other loaders that work on all ranks

    @property
    def worker_batch_s(self) -> float:
        """Seconds per batch of each worker, as far as known: the delay of its first batch and the interval between bursts."""
        return max(1, self.config.workers) * self.loader_batch_s

    def loader_paced(self, round_plan: RoundPlan, config: ResolvedConfig, gain: float = 1.0) -> RoundPlan:
        """``round_plan`` for a training that waits for its loader, with a ``config`` expected to be ``gain`` times as fast."""
        step_s, workers = self.loader_batch_s / gain, config.workers
        round_plan = replace(round_plan, min_step_s=step_s)
        loading_s = (2 * max(1, workers) + round_plan.steps_per_round(0.0, workers)) * step_s
        return replace(round_plan, first_round_s=max(round_plan.first_round_s, ACTIVATION_S + loading_s))


@dataclass(frozen=True)
class DiagnosisExperiment:
    """One experiment: every rank runs it, and rank 0 has its value.

    ``skip_reason`` returns, alike on every rank, why the experiment cannot run here, or None. ``measure`` may still raise ConfigFailed on
    every rank. Durations are estimates in seconds.
    """

    field: Measurement
    phase: str  # as displayed: "benchmarking the loader"
    measure: Callable[[DiagnosisContext], object]
    base_s: float  # in addition to loader windows
    loader_windows: int = 0  # number of loader benchmark windows
    skip_reason: Callable[[DiagnosisContext], SkipReason | None] = lambda context: None
    extra_s: Callable[[DiagnosisContext], float] = lambda context: 0.0  # in addition, for what not every diagnosis has
    is_needed: Callable[[DiagnosisContext], bool] = lambda context: True  # False if other measurements already show it

    def expected_s(self, context: DiagnosisContext) -> float:
        """Estimated duration in seconds."""
        return self.base_s + self.loader_windows * max(context.window_s, context.worker_batch_s) + self.extra_s(context)
