"""The baseline and the control runs of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ddpbench.analysis.compare import COMPARABLE_STATUSES, throughput_ratio
from ddpbench.analysis.disturbance import without_disturbed
from ddpbench.analysis.stats import PairedRatio
from ddpbench.analysis.summary import summarize
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY, Role

MAX_FASTER = 1.05
"""Up to this factor, a training that is faster than compute only differs from it by noise. Above, no page compares the two."""


@dataclass(frozen=True)
class WorkersTrial:
    """A trial of ``workers`` per rank. ``gain`` is its throughput as a multiple of that of the baseline, with an interval."""

    workers: int
    gain: PairedRatio


@dataclass(frozen=True)
class ControlRuns:
    """The control runs of a diagnosis; None for one that was not measured, or has no rounds."""

    compute_only: Record | None = None
    independent: Record | None = None
    replay: Record | None = None
    loader_in_background: Record | None = None
    diagnosis: Diagnosis | None = None
    has_background_loader: bool = False  # loader_in_background was measured, even if for too few rounds
    more_workers: WorkersTrial | None = None  # the fastest trial with more workers than the baseline
    rejected: frozenset[Scenario] = frozenset()  # scenarios whose trial failed, or was slower than the baseline
    tried_gains: Mapping[Scenario, float] = field(default_factory=dict)  # of the trials with an interval
    is_contradicted: bool = False  # the training was faster than compute only: neither that nor what is compared with it is here

    def rejects(self, scenario: Scenario | None, workers: int) -> bool:
        """Whether a trial speaks against ``scenario``: its own, or one of fewer workers that are more than the ``workers`` of the run."""
        number = scenario.only_workers if scenario else None
        tried = [each.only_workers or 0 for each in self.rejected]
        return scenario in self.rejected or (number is not None and any(workers < each <= number for each in tried))

    def with_intervals(self) -> ControlRuns:
        """Only the control runs that share enough rounds with ``compute_only`` for an interval of their ratio."""
        replay, background = (each if _has_interval(each, self.compute_only) else None for each in (self.replay, self.loader_in_background))
        independent_ratio = step_time_ratio(self.independent, self.compute_only)
        # even without an interval, a ratio of 1 or more shows that there is no gradient sync to save
        is_known = independent_ratio is not None and (independent_ratio.has_interval or independent_ratio.high >= 1)
        return replace(
            self,
            independent=self.independent if is_known else None,
            replay=replay,
            loader_in_background=background,
            has_background_loader=self.loader_in_background is not None,
        )


NO_CONTROLS = ControlRuns()
"""Control runs of a run that was not diagnosed."""


def controls_of(job: Job) -> ControlRuns:
    """The control runs of a diagnosis without their disturbed rounds, found by the roles of its records.

    Whatever computes and also waits for data cannot be faster than computing alone: if it was, something slowed compute only down, and what
    is compared with it would mislead.
    """
    by_role = {record.role: without_disturbed(record) for record in job.records if record.rounds}
    compute_only, independent, replay, background = map(by_role.get, (COMPUTE_ONLY, INDEPENDENT, REPLAY, LOADER_IN_BACKGROUND))
    rejected, gains = _tried(job)
    found = ControlRuns(diagnosis=job.diagnosis, more_workers=_more_workers(by_role), rejected=rejected, tried_gains=gains)
    if _contradicts(by_role.get(BASELINE), compute_only):
        return replace(found, is_contradicted=True)
    return replace(found, compute_only=compute_only, independent=independent, replay=replay, loader_in_background=background)


def _tried(job: Job) -> tuple[frozenset[Scenario], Mapping[Scenario, float]]:
    """The scenarios whose trial failed or was slower than the baseline, beyond the noise, and the gains of trials with an interval."""
    repeat = next((record for record in job.records if record.role == BASELINE_REPEAT), None)
    trials = {record.role.scenario: record for record in job.records if record.role.kind == "trial" and record.role.scenario}
    failed = {scenario for scenario, record in trials.items() if record.status not in COMPARABLE_STATUSES}
    ratios = {scenario: throughput_ratio(record, repeat) for scenario, record in trials.items() if repeat and scenario not in failed}
    gains = {scenario: gain for scenario, gain in ratios.items() if gain and gain.has_interval}
    slower = {scenario for scenario, gain in gains.items() if gain.high < 1}
    return frozenset(failed | slower), {scenario: gain.center for scenario, gain in gains.items()}


def _contradicts(baseline: Record | None, compute_only: Record | None) -> bool:
    """Whether ``baseline`` is faster than ``compute_only``, beyond what their rounds vary by."""
    run_s, compute_s, ratio = step_s(baseline), step_s(compute_only), step_time_ratio(baseline, compute_only)
    if run_s is None or compute_s is None or compute_s <= MAX_FASTER * run_s:
        return False
    return ratio is None or not ratio.has_interval or ratio.high < 1


def _more_workers(by_role: Mapping[Role, Record]) -> WorkersTrial | None:
    baseline, repeat = by_role.get(BASELINE), by_role.get(BASELINE_REPEAT)
    if baseline is None or repeat is None:
        return None
    trials = {
        role.scenario.workers or 0: record
        for role, record in by_role.items()
        if role.kind == "trial" and role.scenario and record.status in COMPARABLE_STATUSES
    }
    gains = {workers: throughput_ratio(record, repeat) for workers, record in trials.items() if workers > baseline.workers}
    found = [WorkersTrial(workers, gain) for workers, gain in gains.items() if gain and gain.has_interval]
    return max(found, key=lambda trial: trial.gain.center, default=None)


def baseline_of(job: Job) -> Record | None:
    """The diagnosed run itself; None if ``job`` is not a diagnosis."""
    return next((record for record in job.records if record.role == BASELINE), None)


def step_s(record: Record | None) -> float | None:
    """Seconds per step of the slowest rank."""
    milliseconds = summarize(record).step_ms if record else None
    return None if milliseconds is None else milliseconds / 1000


def step_time_ratio(other: Record | None, base: Record | None) -> PairedRatio | None:
    """Step time of ``other`` as a multiple of that of ``base``, over the rounds that both finished."""
    return throughput_ratio(base, other) if base and other else None


def extra_step_s(other: Record | None, base: Record | None) -> float | None:
    """Seconds by which a step of ``other`` is longer than one of ``base``, over the rounds that both finished."""
    base_s, ratio = step_s(base), step_time_ratio(other, base)
    return None if base_s is None or ratio is None else base_s * (ratio.center - 1)


def _has_interval(record: Record | None, device: Record | None) -> bool:
    ratio = step_time_ratio(record, device)
    return ratio is not None and ratio.has_interval
