"""Round lengths and replay size of a diagnosis, from the loader's pace and the time limit."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, sqrt

from ddpbench.analysis.remedies.training_rules import DIAGNOSIS_S
from ddpbench.analysis.run_length import MIN_STEPS
from ddpbench.bench.diagnose.context import ACTIVATION_S, DiagnosisContext
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.data.loaders.replay import MAX_REPLAY_BATCHES, MIN_REPLAY_BATCHES
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY, Role

DIAGNOSE_ROUND_S, DIAGNOSE_WARMUP_S = 1.5, 3.0
"""Approximate seconds of a round and of a warm-up, under the usual time limit of a diagnosis."""

RESERVED_ROUNDS = {BASELINE: 3, COMPUTE_ONLY: 1}
"""Rounds without which there is no verdict: time is reserved for them."""

MAX_ROUND_FRACTION = 1 / 4
"""Maximum fraction of the time for rounds that one round takes if steps are slow."""

MAX_REPLAY_FILL_WINDOWS = 3
"""Maximum loader benchmark windows spent on reading the batches to replay."""


def time_scale(limit_s: float) -> float:
    """Factor for window and round lengths. Half of any additional time goes into longer rounds, half into more of them."""
    ratio = limit_s / DIAGNOSIS_S
    return min(ratio, sqrt(ratio))


def diagnose_round_plan(role: Role, context: DiagnosisContext, limit_s: float, available_s: float) -> RoundPlan:
    """The RoundPlan of the control run ``role``, if all share ``available_s`` seconds of a diagnosis of ``limit_s``.

    The baseline runs its required rounds in one turn if its loader starts slowly.
    """
    round_s, warmup_s = DIAGNOSE_ROUND_S * time_scale(limit_s), DIAGNOSE_WARMUP_S * time_scale(limit_s)
    plan = RoundPlan(
        round_s,
        warmup_s,
        max_round_s=MAX_ROUND_FRACTION * available_s,
        reserved_rounds=RESERVED_ROUNDS.get(role, 0),
        first_round_s=inf if role == REPLAY and not replay_batch_count(context) else ACTIVATION_S + warmup_s + round_s,
        park_s=context.worker_batch_s if role == LOADER_IN_BACKGROUND else 0.0,  # closing waits for the batch that is being loaded
    )
    if role != BASELINE:
        return plan
    paced = context.loader_paced(replace(plan, min_steps=ceil(MIN_STEPS / plan.reserved_rounds)), context.config)
    return replace(paced, first_turn_rounds=paced.reserved_rounds if paced.reserved_rounds * paced.first_round_s > available_s / 2 else 1)


def replay_batch_count(context: DiagnosisContext) -> int:
    """Batches to replay, limited by reading time and ``MAX_REPLAY_BATCHES``; 0 if not worthwhile or if the loader's pace is unknown."""
    if not context.loader_batch_s:
        return 0
    reading_s = MAX_REPLAY_FILL_WINDOWS * context.window_s
    batches = min(MAX_REPLAY_BATCHES, int(reading_s / context.loader_batch_s))
    return batches if batches >= MIN_REPLAY_BATCHES and context.worker_batch_s <= reading_s else 0
