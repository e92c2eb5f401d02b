"""What became of predictions: which were tried, what they gained, and what to use from now on."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.command import CONFIG, Rerun
from ddpbench.analysis.compare import FIGURE_STANDS, times_as_fast, why_no_figure
from ddpbench.analysis.controls import diagnosed
from ddpbench.analysis.evidence import batches_lacking
from ddpbench.analysis.ratio import Ratio
from ddpbench.record.diagnosis import AGAIN, TRIED
from ddpbench.record.prediction import Change, Prediction
from ddpbench.record.record import Job, Record

WIDEST = 1.5
"""A measured interval that spans more than this factor decides nothing about the prediction."""


@dataclass(frozen=True)
class Outcome:
    """``measured`` is None where a change was not tried, or came to nothing: ``failed`` says why."""

    prediction: Prediction
    measured: Ratio | None = None
    failed: str = ""
    lacking: int = 0  # batches that the shortest round of either side lacks to a complete one

    @property
    def is_wide(self) -> bool:
        """Whether the interval of what was measured is too wide to confirm or refute a prediction."""
        return self.measured is not None and self.measured.high > WIDEST * self.measured.low

    @property
    def inside(self) -> bool | None:
        """Whether what was measured lies in the predicted interval; None if one of them is missing, or the measurement too wide."""
        found = self.prediction
        if self.measured is None or found.low is None or found.high is None or self.is_wide:
            return None
        return found.low <= self.measured.center <= found.high

    @property
    def gained(self) -> bool:
        """Whether it is faster than the setting as it is, beyond the noise."""
        return self.measured is not None and self.measured.is_more

    @property
    def told(self) -> bool:
        """Whether it is faster, or slower, beyond the noise."""
        return self.measured is not None and self.measured.has_interval and not self.measured.low <= 1 <= self.measured.high


def outcomes(job: Job) -> list[Outcome]:
    """One a prediction of the diagnosis, the greatest predicted gain first."""
    if job.diagnosis is None:
        return []
    by_label = {record.label: record for record in job.records}
    found = [_outcome(each, by_label.get(TRIED + each.change.words), by_label.get(AGAIN)) for each in job.diagnosis.predictions]
    return sorted(found, key=lambda each: -(each.prediction.gain or 0.0))


def _outcome(prediction: Prediction, tried: Record | None, again: Record | None) -> Outcome:
    if tried is None or again is None:
        return Outcome(prediction)
    if fault := next((arm for arm in (tried, again) if arm.status not in FIGURE_STANDS), None):
        return Outcome(prediction, failed=why_no_figure(fault))
    measured = times_as_fast(tried, again)
    return Outcome(prediction, measured, lacking=max(map(batches_lacking, (tried, again))) if measured else 0)


def best(found: list[Outcome]) -> Outcome | None:
    """The one that measurably gained most."""
    return max((each for each in found if each.gained), key=lambda each: each.measured.center if each.measured else 0.0, default=None)


def fields_of(change: Change) -> dict[str, object]:
    """The fields of a Config that it changes."""
    values = {name: getattr(change, name) for name in change.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None and name in CONFIG}


def can_be_tried(change: Change) -> bool:
    """Whether flags of a run are all of it: more cores or ranks are not to be had by asking."""
    return all(getattr(change, name) is None or name in CONFIG for name in change.__struct_fields__)


def command_for(job: Job, change: Change) -> str:
    """The run with that change."""
    record = diagnosed(job)
    assert record is not None, "a diagnosis"
    return Rerun.of(record, job).command(**{name: (value,) for name, value in fields_of(change).items()})
