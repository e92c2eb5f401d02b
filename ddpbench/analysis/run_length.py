"""Run length: rounds and steps that a figure or a verdict needs."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from ddpbench.analysis.rounds import split_rounds
from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import Record

MIN_ROUNDS, MIN_STEPS = 5, 30
"""Rounds and steps that a figure needs."""

MIN_ROUNDS_AND_STEPS_FOR_VERDICT = 3, 10
"""Rounds and steps that a verdict needs: with fewer, the bottleneck is a guess."""


MIN_BATCHES_PER_PRODUCER = 4
"""Batches per worker or pipeline that a round needs: they come in bursts, which then average out."""


def are_mostly_prefetched(batches: int, prefetched: int) -> bool:
    """Whether workers load most ``batches`` of an epoch, or between two pauses, at once: then only all of them show its pace."""
    return batches < 2 * prefetched


def timed_steps(record: Record) -> int:
    """Number of timed steps of all rounds."""
    return sum(timed.traces[0].steps for timed in record.rounds)


def missing_batches(record: Record) -> int:
    """Batches that the shortest round lacks to ``MIN_BATCHES_PER_PRODUCER`` per worker or pipeline; 0 if none."""
    shortest = min(timed.traces[0].steps for timed in record.rounds)
    return max(0, MIN_BATCHES_PER_PRODUCER * loader_spec(record.config.loader).num_producers(record.workers) - shortest)


def required_length(record: Record) -> Mapping[str, int]:
    """The ``rounds`` and, if needed, the ``steps`` per round that the next run needs for a well-supported figure.

    With --epochs the length of a round is fixed, so only ``rounds`` grows. Needs a round.
    """
    requested, steps_per_round = record.requested or record.config, min(timed.traces[0].steps for timed in record.rounds)
    rounds = max(requested.rounds, MIN_ROUNDS)
    if rounds * steps_per_round >= MIN_STEPS:
        return {"rounds": rounds}
    if requested.epochs is not None:
        return {"rounds": ceil(MIN_STEPS / steps_per_round)}
    return {"rounds": rounds, "steps": ceil(MIN_STEPS / rounds)}


def is_too_short_for_verdict(record: Record) -> bool:
    min_rounds, min_steps = MIN_ROUNDS_AND_STEPS_FOR_VERDICT
    return len(with_split_rounds(record).rounds) < min_rounds or timed_steps(record) < min_steps


def with_split_rounds(record: Record) -> Record:
    """``record`` with enough rounds to resample for a verdict: a few long trainings are split into parts."""
    return split_rounds(record, MIN_ROUNDS_AND_STEPS_FOR_VERDICT[0])
