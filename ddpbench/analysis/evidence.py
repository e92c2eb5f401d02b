"""How much a figure rests on: enough rounds and steps, and what it lies between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ddpbench.analysis.split_rounds import split_rounds
from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import Record

MIN_ROUNDS, MIN_STEPS = 5, 30
"""What a figure needs."""

MIN_ROUNDS_AND_STEPS_FOR_VERDICT = 3, 10
"""Rounds and steps below which a limit is a guess."""

MIN_VALUES_FOR_INTERVAL = 3
"""The t-interval of two figures is so wide that it says nothing: their range says more."""

MIN_BATCHES_PER_PRODUCER = 4
"""A round has at least so many batches per worker or pipeline: they come in bursts, which its mean then evens out."""

BOTTLENECK_FRACTION = 0.10
"""A wait is a limit from this fraction of the step."""


@dataclass(frozen=True)
class FigureInterval:
    """What a figure in images/s lies between: an interval of some confidence or, of too few, just their range."""

    low: float
    high: float
    num_values: int  # rounds, or launches
    confidence: float | None  # None for a range


def figure_interval(record: Record) -> FigureInterval | None:
    """That of the headline of ``record``, from its launches where they are several, else from its rounds; None without a headline."""
    headline = record.throughput
    if headline is None:
        return None
    figures = headline.launch_images_per_s or [timed.images_per_s for timed in record.rounds]
    if len(figures) < MIN_VALUES_FOR_INTERVAL:
        return FigureInterval(min(figures), max(figures), len(figures), None)
    return FigureInterval(headline.low, headline.high, len(figures), headline.confidence)


def timed_steps(record: Record) -> int:
    """Timed steps of all rounds."""
    return sum(timed.traces[0].steps for timed in record.rounds)


def missing_batches(record: Record) -> int:
    """How many batches its shortest round lacks to ``BATCHES_PER_MAKER`` per worker or pipeline; 0 if none."""
    shortest = min(timed.traces[0].steps for timed in record.rounds)
    return max(0, MIN_BATCHES_PER_PRODUCER * loader_spec(record.config.loader).num_producers(record.workers) - shortest)


def required_length(record: Record) -> Mapping[str, int]:
    """The ``rounds`` and, where theirs would be too short, the ``steps`` of each, that give the next run's figure what it needs.

    A round of whole epochs has the length that it has: there must be more of them. Needs a round.
    """
    asked, a_round = record.requested or record.config, min(timed.traces[0].steps for timed in record.rounds)
    rounds = max(asked.rounds, MIN_ROUNDS)
    if rounds * a_round >= MIN_STEPS:
        return {"rounds": rounds}
    if asked.epochs is not None:
        return {"rounds": ceil(MIN_STEPS / a_round)}
    return {"rounds": rounds, "steps": ceil(MIN_STEPS / rounds)}


def is_too_short_for_verdict(record: Record) -> bool:
    rounds, least = MIN_ROUNDS_AND_STEPS_FOR_VERDICT
    return len(with_split_rounds(record).rounds) < rounds or timed_steps(record) < least


def with_split_rounds(record: Record) -> Record:
    """``record`` in the pieces whose agreement tells what a verdict is worth: its rounds, or the parts of a few long trainings."""
    return split_rounds(record, MIN_ROUNDS_AND_STEPS_FOR_VERDICT[0])
