"""How long the turns of a scaling job are, for every arm to have all its rounds in the time that there is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ddpbench.bench.lengths import ROUND_S
from ddpbench.bench.round_plan import Brief
from ddpbench.record.scaling import WITH_DATA

LEAST_ROUND_S = 0.5

BESIDE_S = 1.5
"""What a turn takes beside its round, about: a model is built, warmed up, and laid aside."""

SLOW = 3.0
"""A turn with data takes as long as so many others: workers start, and batches come slowly."""


def brief_of(label: str, labels: Collection[str], rounds: int, available_s: float) -> Brief:
    """How the arm of ``label`` takes its turns, where all of ``labels`` share ``available_s`` seconds for so many rounds each."""
    turn_s = available_s / rounds / (len(labels) + (SLOW - 1) * (WITH_DATA in labels))
    round_s = min(ROUND_S, max(LEAST_ROUND_S, turn_s - BESIDE_S))
    usual = Brief(round_s, warm_up_s=max(1.0, round_s), first_round_s=BESIDE_S + round_s)
    return (
        replace(usual, warm_up_s=SLOW * round_s, longest_s=SLOW * round_s, first_round_s=SLOW * usual.first_round_s)
        if label == WITH_DATA
        else usual
    )
