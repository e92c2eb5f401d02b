"""How long the turns of a scaling job are, for every arm to have all its rounds in the time that there is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ddpbench.bench.lengths import TARGET_ROUND_S
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.record.scaling import WITH_DATA

SCALE_MIN_ROUND_S = 0.5

SCALE_ACTIVATION_S = 1.5
"""What a turn takes beside its round, about: a model is built, warmed up, and laid aside."""

WITH_DATA_SLOWDOWN = 3.0
"""A turn with data takes as long as so many others: workers start, and batches come slowly."""


def scale_round_plan(label: str, labels: Collection[str], rounds: int, available_s: float) -> RoundPlan:
    """How the arm of ``label`` takes its turns, where all of ``labels`` share ``available_s`` seconds for so many rounds each."""
    turn_s = available_s / rounds / (len(labels) + (WITH_DATA_SLOWDOWN - 1) * (WITH_DATA in labels))
    round_s = min(TARGET_ROUND_S, max(SCALE_MIN_ROUND_S, turn_s - SCALE_ACTIVATION_S))
    usual = RoundPlan(round_s, warmup_s=max(1.0, round_s), first_round_s=SCALE_ACTIVATION_S + round_s)
    return (
        replace(
            usual,
            warmup_s=WITH_DATA_SLOWDOWN * round_s,
            max_round_s=WITH_DATA_SLOWDOWN * round_s,
            first_round_s=WITH_DATA_SLOWDOWN * usual.first_round_s,
        )
        if label == WITH_DATA
        else usual
    )
