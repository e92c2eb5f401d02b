"""Outcomes of predictions: which were tried, what they gained, and which setting is best."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.command import CONFIG_FIELDS, DATALOADER_FIELDS, CommandBuilder
from ddpbench.analysis.compare import COMPARABLE_STATUSES, throughput_ratio
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.run_length import missing_batches
from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import BASELINE_REPEAT, trial_role

MAX_INTERVAL_RATIO = 1.5
"""A measured interval that spans more than this factor neither confirms nor refutes a prediction."""


@dataclass(frozen=True)
class PredictionOutcome:
    """``measured`` is None if the scenario was not tried, or ``failed``."""

    prediction: Prediction
    measured: PairedRatio | None = None
    failed: Record | None = None  # the arm without a figure: the scenario, or its baseline
    missing_batches: int = 0  # that the shortest round of either side lacks to be complete

    @property
    def is_wide(self) -> bool:
        """Whether the measured interval is too wide to confirm or refute the prediction."""
        return self.measured is not None and self.measured.high > MAX_INTERVAL_RATIO * self.measured.low

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured gain lies in the predicted interval.

        None if either is missing or ``is_wide``.
        """
        found = self.prediction
        if self.measured is None or found.low is None or found.high is None or self.is_wide:
            return None
        return found.low <= self.measured.center <= found.high

    @property
    def is_gain(self) -> bool:
        """Whether it is faster than the baseline, beyond the noise."""
        return self.measured is not None and self.measured.is_above_one

    @property
    def is_significant(self) -> bool:
        """Whether it is faster or slower than the baseline, beyond the noise."""
        return self.measured is not None and self.measured.has_interval and not self.measured.low <= 1 <= self.measured.high


def outcomes(job: Job) -> list[PredictionOutcome]:
    """Return one outcome per prediction of the diagnosis, largest predicted gain first."""
    if job.diagnosis is None:
        return []
    by_role = {record.role: record for record in job.records}
    found = [_outcome(each, by_role.get(trial_role(each.scenario)), by_role.get(BASELINE_REPEAT)) for each in job.diagnosis.predictions]
    return sorted(found, key=lambda each: -(each.prediction.gain or 0.0))


def _outcome(prediction: Prediction, tried: Record | None, baseline: Record | None) -> PredictionOutcome:
    if tried is None or baseline is None:
        return PredictionOutcome(prediction)
    if failed := next((arm for arm in (tried, baseline) if arm.status not in COMPARABLE_STATUSES), None):
        return PredictionOutcome(prediction, failed=failed)
    measured = throughput_ratio(tried, baseline)
    return PredictionOutcome(prediction, measured, missing_batches=max(map(missing_batches, (tried, baseline))) if measured else 0)


def best_outcome(candidates: list[PredictionOutcome]) -> PredictionOutcome | None:
    """Return the outcome with the largest measured gain.

    None if none is a gain beyond the noise.
    """
    return max((each for each in candidates if each.is_gain), key=lambda each: each.measured.center if each.measured else 0.0, default=None)


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
