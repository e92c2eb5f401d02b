"""How long the turns of a diagnosis' trainings are, and how much is replayed, by the pace of the loader, in the time that there is."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, sqrt

from ddpbench.analysis.evidence import MIN_STEPS
from ddpbench.analysis.remedies.training import DIAGNOSIS_S
from ddpbench.bench.diagnose.scene import ACTIVATION_S, DiagnosisContext
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.data.loaders.replay import MAX_REPLAY_BATCHES, MIN_REPLAY_BATCHES
from ddpbench.record.diagnosis import BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY

DIAGNOSE_ROUND_S, DIAGNOSE_WARMUP_S = 1.5, 3.0
"""How long a round of a training lasts, and a warm-up, about, in the time that a diagnosis usually has."""

RESERVED_ROUNDS = {BASELINE: 3, COMPUTE_ONLY: 1}
"""Rounds without which there is no verdict: time is kept for them."""

MAX_ROUND_FRACTION = 1 / 4
"""The share of the time for rounds that one may take where steps are slow."""

MAX_REPLAY_FILL_WINDOWS = 3
"""So many windows of looking at a loader may go into reading the batches to replay."""


def time_scale(limit_s: float) -> float:
    """How long windows and rounds are, of what they usually are: of more time half goes into longer rounds, and half into more."""
    share = limit_s / DIAGNOSIS_S
    return min(share, sqrt(share))


def diagnose_round_plan(label: str, context: DiagnosisContext, limit_s: float, available_s: float) -> RoundPlan:
    """How the training of that label takes its turns, where all share ``available_s`` seconds of a diagnosis of ``limit_s``.

    The run itself has its rounds at once where its loader starts too slowly.
    """
    round_s, warm_up_s = DIAGNOSE_ROUND_S * time_scale(limit_s), DIAGNOSE_WARMUP_S * time_scale(limit_s)
    usual = RoundPlan(
        round_s,
        warm_up_s,
        max_round_s=MAX_ROUND_FRACTION * available_s,
        reserved_rounds=RESERVED_ROUNDS.get(label, 0),
        first_round_s=inf if label == REPLAY and not replay_batch_count(context) else ACTIVATION_S + warm_up_s + round_s,
        park_s=context.worker_batch_s if label == LOADER_IN_BACKGROUND else 0.0,  # the batch that it waits for is waited for to the end
    )
    if label != BASELINE:
        return usual
    paced = context.loader_paced(replace(usual, min_steps=ceil(MIN_STEPS / usual.reserved_rounds)), context.config)
    return replace(paced, first_turn_rounds=paced.reserved_rounds if paced.reserved_rounds * paced.first_round_s > available_s / 2 else 1)


def replay_batch_count(context: DiagnosisContext) -> int:
    """As many as there is time to read, and no more than are of use; 0 where that is not worth it, or the loader's pace not known."""
    if not context.loader_batch_s:
        return 0
    reading_s = MAX_REPLAY_FILL_WINDOWS * context.window_s
    batches = min(MAX_REPLAY_BATCHES, int(reading_s / context.loader_batch_s))
    return batches if batches >= MIN_REPLAY_BATCHES and context.worker_batch_s <= reading_s else 0
