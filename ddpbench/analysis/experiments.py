"""The trainings and experiments around a run that was diagnosed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

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

    def round(self, index: int) -> Experiments:
        """The same from one round alone."""
        device, no_sync, replay, beside = (_round_of(each, index) for each in (self.device, self.no_sync, self.replay, self.beside))
        return Experiments(device, no_sync, replay, beside, self.diagnosis)


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


def _round_of(record: Record | None, index: int) -> Record | None:
    """That round as if it were all; the profiler's window was of none."""
    chosen = [timed for timed in record.rounds if timed.index == index] if record else []
    return msgspec.structs.replace(record, rounds=chosen, launch_gap=None) if record and chosen else None
