"""Remedies from the cures that were screened inside a running script."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.screening import is_kept, noise_floor, screened_gain
from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.record import Record
from ddpbench.record.remedy import MeasuredGain, ScreenedRemedy
from ddpbench.record.screening import NULL, CureCode, ScreenedCure, Screening
from ddpbench.record.verdict import ChangeTraining


def screened_remedies(screening: Screening, record: Record) -> list[ScreenedRemedy]:
    """One remedy per trial of a cure, in their order."""
    floor = noise_floor(screening.cures)
    return [_screened(each, record, is_kept(each, floor)) for each in screening.cures if each.code != NULL]


def _screened(cure: ScreenedCure, record: Record, kept: bool) -> ScreenedRemedy:
    gain = screened_gain(cure)
    return ScreenedRemedy(
        code=cure.code,  # type: ignore[arg-type]  # the null cure is none
        measured=measured_gain(gain) if gain else None,
        change=training_change([cure.code], record),
        failure=cure.failure,
        on_top_of=cure.on_top_of,
        is_kept=kept,
        first_use_s=cure.first_use_s,
        obstacle=cure.obstacle,
        needed_s=cure.needed_s,
        can_be_tried=cure.obstacle in (None, "no-time"),
    )


def training_change(cures: Sequence[CureCode], record: Record) -> ChangeTraining:
    """What to write in the script of ``record`` for ``cures``."""
    optimizers = record.script.optimizers if record.script else []
    return ChangeTraining(cures=list(cures), optimizers=list(optimizers), device_type=record.environment.device_type)


def measured_gain(ratio: PairedRatio) -> MeasuredGain:
    return MeasuredGain(center=ratio.center, low=ratio.low, high=ratio.high, pairs=ratio.pairs, has_interval=ratio.has_interval)
