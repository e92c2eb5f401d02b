"""The trainings and experiments around a run that was diagnosed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddpbench.analysis.compare import times_as_fast
from ddpbench.analysis.ratio import Ratio
from ddpbench.analysis.summary import summarise
from ddpbench.record.diagnosis import BESIDE, DEVICE, NO_SYNC, REAL, REPLAY, Diagnosis
from ddpbench.record.record import Job, Record


@dataclass(frozen=True)
class Experiments:
    """What was measured beside a run; None where it was not, or has no round."""

    device: Record | None = None
    no_sync: Record | None = None
    replay: Record | None = None
    beside: Record | None = None
    diagnosis: Diagnosis | None = None
    loads_beside: bool = False  # training was measured while the loader runs, for however few rounds

    def with_intervals(self) -> Experiments:
        """Only the control runs that share enough rounds with the one on the device for an interval of their ratio."""
        replay, beside = (each if _has_interval(each, self.device) else None for each in (self.replay, self.beside))
        apart = times_as_long(self.no_sync, self.device)
        known = apart is not None and (apart.has_interval or apart.high >= 1)  # a pair shows whether there is any sync to save
        return replace(self, no_sync=self.no_sync if known else None, replay=replay, beside=beside, loads_beside=self.beside is not None)


NONE = Experiments()
"""Around a run that was measured by itself."""


def experiments_of(job: Job) -> Experiments:
    """Those of a diagnosis, by the labels of its records."""
    by_label = {record.label: record for record in job.records if record.rounds}
    device, no_sync, replay, beside = map(by_label.get, (DEVICE, NO_SYNC, REPLAY, BESIDE))
    return Experiments(device, no_sync, replay, beside, job.diagnosis)


def diagnosed(job: Job) -> Record | None:
    """The run that a diagnosis is of."""
    return next((record for record in job.records if record.label == REAL), None)


def step_s(record: Record | None) -> float | None:
    """Seconds of a step, of the slowest rank."""
    milliseconds = summarise(record).step_ms if record else None
    return None if milliseconds is None else milliseconds / 1000


def times_as_long(other: Record | None, base: Record | None) -> Ratio | None:
    """How many times as long as those of ``base`` the steps of ``other`` take, over the rounds that both finished."""
    return times_as_fast(base, other) if base and other else None


def longer_s(other: Record | None, base: Record | None) -> float | None:
    """Seconds by which a step of ``other`` is longer than one of ``base``, over the rounds that both finished."""
    base_s, times = step_s(base), times_as_long(other, base)
    return None if base_s is None or times is None else base_s * (times.center - 1)


def _has_interval(record: Record | None, device: Record | None) -> bool:
    ratio = times_as_long(record, device)
    return ratio is not None and ratio.has_interval
