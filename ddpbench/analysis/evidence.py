"""How much a figure rests on: enough rounds and steps, and what it lies between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ddpbench.analysis.split_rounds import in_parts
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Record

LEAST_ROUNDS, LEAST_STEPS = 5, 30
"""What a figure needs."""

LEAST_FOR_A_VERDICT = 3, 10
"""Rounds and steps below which a limit is a guess."""

LEAST_FOR_AN_INTERVAL = 3
"""The t-interval of two figures is so wide that it says nothing: their range says more."""

BATCHES_PER_MAKER = 4
"""A round has at least so many batches per worker or pipeline: they come in bursts, which its mean then evens out."""

BINDING = 0.10
"""A wait is a limit from this fraction of the step."""


@dataclass(frozen=True)
class Reach:
    """What a figure in images/s lies between: an interval of some confidence or, of too few, just their range."""

    low: float
    high: float
    of: int  # rounds, or launches
    confidence: float | None  # None for a range


def reach(record: Record) -> Reach | None:
    """That of the headline of ``record``, from its launches where they are several, else from its rounds; None without a headline."""
    headline = record.headline
    if headline is None:
        return None
    figures = headline.launch_figures or [timed.images_per_s for timed in record.rounds]
    if len(figures) < LEAST_FOR_AN_INTERVAL:
        return Reach(min(figures), max(figures), len(figures), None)
    return Reach(headline.low, headline.high, len(figures), headline.confidence)


def steps(record: Record) -> int:
    """Timed steps of all rounds."""
    return sum(timed.traces[0].steps for timed in record.rounds)


def batches_lacking(record: Record) -> int:
    """How many batches its shortest round lacks to ``BATCHES_PER_MAKER`` per worker or pipeline; 0 if none."""
    shortest = min(timed.traces[0].steps for timed in record.rounds)
    return max(0, BATCHES_PER_MAKER * spec_of(record.config.loader).makers(record.workers) - shortest)


def enough(record: Record) -> Mapping[str, int]:
    """The ``rounds`` and, where theirs would be too short, the ``steps`` of each, that give the next run's figure what it needs.

    A round of whole epochs has the length that it has: there must be more of them. Needs a round.
    """
    asked, a_round = record.asked or record.config, min(timed.traces[0].steps for timed in record.rounds)
    rounds = max(asked.rounds, LEAST_ROUNDS)
    if rounds * a_round >= LEAST_STEPS:
        return {"rounds": rounds}
    if asked.epochs is not None:
        return {"rounds": ceil(LEAST_STEPS / a_round)}
    return {"rounds": rounds, "steps": ceil(LEAST_STEPS / rounds)}


def too_few_for_a_verdict(record: Record) -> bool:
    rounds, least = LEAST_FOR_A_VERDICT
    return len(pieces(record).rounds) < rounds or steps(record) < least


def pieces(record: Record) -> Record:
    """``record`` in the pieces whose agreement tells what a verdict is worth: its rounds, or the parts of a few long trainings."""
    return in_parts(record, LEAST_FOR_A_VERDICT[0])
