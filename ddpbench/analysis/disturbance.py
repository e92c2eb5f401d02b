"""Disturbed rounds: one that something else on the machine slowed down must not decide what a control run shows.

A round is disturbed if its throughput is more than ``MAX_DEVIATIONS`` robust standard deviations and a factor of ``MIN_FACTOR`` away from
the median (on logs; Iglewicz and Hoaglin 1993). Rounds of control runs repeat the same steps, so that such a round says nothing about them.
Those of the training itself are only named: they are what it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import median

import msgspec

from ddpbench.record.record import Job, Record
from ddpbench.record.roles import COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY

MAX_DEVIATIONS, MIN_FACTOR = 3.0, 1.5

NORMAL_DEVIATION = 1.4826
"""Standard deviation of a normal distribution as a multiple of its median absolute deviation."""

MAX_DISTURBED_FRACTION = 0.25
"""If more rounds than this fraction lie apart, they are no exceptions: all count."""

CONTROL_ROLES = (COMPUTE_ONLY, INDEPENDENT, REPLAY, LOADER_IN_BACKGROUND)


@dataclass(frozen=True)
class Disturbance:
    """The rounds of an arm that lie apart from its others. ``is_left_out`` if no figure uses them."""

    record: Record
    samples_per_s: Sequence[float]  # of the disturbed rounds
    num_rounds: int
    median: float  # samples/s of the other rounds
    is_left_out: bool


def disturbed_places(figures: Sequence[float]) -> list[int]:
    """Places of the disturbed ones among positive ``figures``; empty if they are too many.

    Several at the start or the end that follow each other are a drift, not disturbed.
    """
    logs = [log(each) for each in figures]
    center = median(logs) if logs else 0.0
    deviations = [abs(each - center) for each in logs]
    least = max(log(MIN_FACTOR), MAX_DEVIATIONS * NORMAL_DEVIATION * median(deviations)) if logs else 0.0
    found = [place for place, deviation in enumerate(deviations) if deviation > least]
    if len(found) > MAX_DISTURBED_FRACTION * len(logs) or {0, 1} <= {*found} or {len(logs) - 2, len(logs) - 1} <= {*found}:
        return []
    return found


def without_disturbed(record: Record) -> Record:
    """``record`` without its disturbed rounds, if it is a control run; every figure of one is taken from this."""
    if record.role not in CONTROL_ROLES:
        return record
    places = disturbed_places([timed.samples_per_s for timed in record.rounds])
    kept = [timed for place, timed in enumerate(record.rounds) if place not in places]
    return msgspec.structs.replace(record, rounds=kept) if places else record


def disturbances(job: Job) -> list[Disturbance]:
    """The disturbed rounds of all arms of a diagnosis."""
    found = []
    for record in job.records:
        figures = [timed.samples_per_s for timed in record.rounds]
        if places := disturbed_places(figures):
            some = [figures[place] for place in places]
            others = [figure for place, figure in enumerate(figures) if place not in places]
            found.append(Disturbance(record, some, len(figures), median(others), record.role in CONTROL_ROLES))
    return found
