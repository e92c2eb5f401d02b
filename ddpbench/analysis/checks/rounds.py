"""Checks of the rounds: whether they agree, and whether there are enough."""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from ddpbench.analysis.run_length import MIN_ROUNDS, MIN_STEPS, required_length, timed_steps
from ddpbench.analysis.stats import coefficient_of_variation
from ddpbench.record.checks import Drift, MeasurementTooShort, Noisy, Relocated
from ddpbench.record.record import Record
from ddpbench.record.script import WatchedScript

MAX_ROUND_CV = 0.01
MAX_DRIFT = 0.02

NOT_TIME_LIMITED_ROLES = ("run", "side", "earlier_model_alive")
"""Roles of arms whose number of rounds the user decides, and not the time limit of a diagnosis or a scaling job."""

CUT_SHORT_STATUSES = ("running", "interrupted", "hung")
"""Statuses of a run that was cut short without an error in it."""


def check_noise(record: Record) -> Noisy | None:
    """Only the variation of rounds counts: that of steps is a pattern (bursts of a loader), not noise.

    Twice as many rounds, but at least the minimum, are suggested once; none for trainings whose command or script decides their number.
    """
    if len(record.rounds) < 2:
        return None
    round_cv = coefficient_of_variation([timed.samples_per_s for timed in record.rounds])
    if round_cv <= MAX_ROUND_CV:
        return None
    requested_rounds = (record.requested or record.config).rounds
    return Noisy(
        round_cv=round_cv,
        suggested_rounds=max(MIN_ROUNDS, 2 * requested_rounds) if requested_rounds <= MIN_ROUNDS and _has_length_flags(record) else None,
    )


def check_drift(record: Record) -> Drift | None:
    figures = [timed.samples_per_s for timed in record.rounds]
    if len(figures) < 4:
        return None
    change = fmean(figures[-2:]) / fmean(figures[:2]) - 1
    return Drift(change=change) if abs(change) > MAX_DRIFT else None


def check_relocations(record: Record) -> Relocated | None:
    return Relocated(round_indices=[relocation.first_round for relocation in record.relocations]) if record.relocations else None


def check_length(record: Record) -> MeasurementTooShort | None:
    """A warning if the user's flags, or an early end, leave too few; a note if ddpbench chose as many as the time allowed."""
    rounds, timed, requested = len(record.rounds), timed_steps(record), record.requested or record.config
    if rounds >= MIN_ROUNDS and timed >= MIN_STEPS:
        return None
    if record.script is not None:
        ended_by = _end_of_script(record, record.script)
        remedy: Literal["longer-time-limit"] | None = "longer-time-limit" if ended_by == "time-limit" else None
        return MeasurementTooShort(severity="info", rounds=rounds, steps=timed, limited_by=ended_by, remedy=remedy)
    limit: Literal["time-limit", "one-minute"] = "time-limit" if _is_time_limited(record) else "one-minute"
    automatic = rounds >= MIN_ROUNDS and not requested.steps and not requested.epochs
    by_time = record.status == "ok" and (limit == "time-limit" or automatic)
    required = {} if limit == "time-limit" else required_length(record)
    more = {name: number for name, number in required.items() if number != getattr(requested, name)}
    return MeasurementTooShort(
        severity="info" if by_time else "warning",
        rounds=rounds,
        steps=timed,
        limited_by=limit if by_time else None,
        remedy=_remedy(record),
        suggested_rounds=more.get("rounds"),
        suggested_steps=more.get("steps"),
    )


def _end_of_script(record: Record, script: WatchedScript) -> Literal["time-limit", "steps", "script"]:
    """What ended the training of a script: ddpbench, in a diagnosis or after --steps batches, or the script itself."""
    if not script.ended_early:
        return "script"
    return "time-limit" if _is_time_limited(record) else "steps"


def _remedy(record: Record) -> Literal["longer-time-limit", "run-to-end"] | None:
    """What would let the run finish more rounds, other than flags that ask for more."""
    requested = record.requested or record.config
    if _is_time_limited(record):
        return "longer-time-limit"
    if len(record.rounds) >= requested.rounds:
        return None
    if record.status == "ok" and requested.time_limit is not None:
        return "longer-time-limit"
    return "run-to-end" if record.status in CUT_SHORT_STATUSES else None


def _has_length_flags(record: Record) -> bool:
    """Whether a flag of its command sets the number of rounds."""
    return record.script is None and not _is_time_limited(record)


def _is_time_limited(record: Record) -> bool:
    return record.role.kind not in NOT_TIME_LIMITED_ROLES
