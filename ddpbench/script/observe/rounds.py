"""Cuts the steps of a watched script into rounds of about three seconds, the same steps on all ranks.

A stretch is what the script trains without a pause: an epoch, or the steps between two validations. Short ones are measured whole, several
per round: the start of workers, the refill of their queues and what they had ready after a pause are that training as it is. Of long ones
only what is steady counts; the start of an epoch is spread over its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from ddpbench.analysis.collective_wait import subsample_round
from ddpbench.analysis.rounds import collect_round
from ddpbench.analysis.run_length import MIN_BATCHES_PER_PRODUCER, MIN_ROUNDS, MIN_ROUNDS_AND_STEPS_FOR_VERDICT, are_mostly_prefetched
from ddpbench.record.record import Round
from ddpbench.record.trace import Memory, Numerics, Trace
from ddpbench.script.observe.rows import (
    ELEMENTS,
    EPOCH_START_MS,
    FIRST_PHASE,
    HOST_DATA_MS,
    NUMBER,
    PHASE_NAMES,
    SAMPLES,
    STRETCH,
    THREAD_CPU_MS,
    UPDATES,
    Rows,
)

ROUND_MS = 3000.0
"""Length of a round; less if the training is too short for ``MIN_ROUNDS`` of them."""

WHOLE_STRETCH_MS = 10_000.0
"""Up to this length, a stretch is measured whole; a longer one if workers load most of its batches at once."""

MIN_ROUND_STEPS = 5
WARMUP_STEPS = 10
"""Steps at the start of the training that belong to no round."""

MAX_ROUNDS, MAX_ROUND_STEPS = 20, 256
"""What a record keeps: rounds, spread over the training, and steps of each, spread over the round."""

MIN_LARGEST_FRACTION = 0.9
"""A rank has the largest batches if it does in this fraction of the steps."""

Span = tuple[int, int]
"""The number of a step, and of the one after the last."""


@dataclass(frozen=True)
class LoaderShape:
    """What decides how the batches of a loader come."""

    workers: int = 0
    prefetched: int = 0  # batches that its workers have ready after a pause
    epoch_batches: int | None = None  # None if unknown

    @property
    def min_round_steps(self) -> int:
        """Steps that a round of steady steps needs, so that bursts of the workers average out."""
        return max(MIN_ROUND_STEPS, MIN_BATCHES_PER_PRODUCER * self.workers)


def cut_rounds(rows_of_rank: Sequence[Rows], loader: LoaderShape, engine: str, memory: Mapping[int, Memory]) -> list[Round]:
    """The rounds of a training. ``rows_of_rank`` has the steps of every rank, ``memory`` the peak memory of ranks where it is known.

    Rank 0 decides where a round begins and ends. A round that another rank has not measured, or interrupted by a pause, is left out.
    """
    found: list[Round] = []
    last = min(rows[-1, NUMBER] if len(rows) else -1.0 for rows in rows_of_rank)  # of the rank that has ended, or sent steps, first
    common = rows_of_rank[0][rows_of_rank[0][:, NUMBER] <= last]
    starts_ms = [epoch_start_ms(rows, loader) for rows in rows_of_rank]
    for spans in _spread(_round_spans(common, loader)):
        parts = [_part_of(rows, spans, start_ms) for rows, start_ms in zip(rows_of_rank, starts_ms, strict=True)]
        if all(part is not None for part in parts):
            traces = [make_trace(rank, part, memory.get(rank, Memory())) for rank, part in enumerate(parts) if part is not None]
            timed = collect_round(len(found), traces, engine)
            timed = with_batch_sizes(timed, [part for part in parts if part is not None])
            found.append(subsample_round(timed, -(-traces[0].steps // MAX_ROUND_STEPS)))
    return found


def with_batch_sizes(timed: Round, parts: Sequence[Rows]) -> Round:
    """``timed`` with how unequal the batches of its ranks are, unless their sizes are unknown. ``parts`` are its steps, by rank."""
    elements = np.stack([part[:, ELEMENTS] for part in parts])
    if len(parts) == 1 or not elements.min(initial=1):
        return timed
    counts = np.bincount(elements.argmax(axis=0), minlength=len(parts))
    largest = int(counts.argmax()) if counts.max() >= MIN_LARGEST_FRACTION * counts.sum() else None
    imbalance = float((elements.max(axis=0) / elements.mean(axis=0)).mean())
    return msgspec.structs.replace(timed, batch_imbalance=imbalance, largest_batch_rank=largest)


def batches_per_update(rows: Rows) -> int:
    """The usual number of batches from one update to the next."""
    distances = np.diff(rows[rows[:, UPDATES] > 0, NUMBER])
    values, counts = np.unique(distances, return_counts=True)
    return max(1, int(values[counts.argmax()])) if len(values) else 1


def usual_batch_size(rows: Rows) -> int:
    """Samples in a batch: those of most batches, or the mean if they vary; 1 without steps."""
    values, counts = np.unique(rows[:, SAMPLES], return_counts=True)
    if not len(rows):
        return 1
    usual = values[counts.argmax()] if 2 * counts.max() > len(rows) else rows[:, SAMPLES].mean()
    return max(1, round(float(usual)))


def step_ms(rows: Rows) -> float:
    """The sum of all steps in ms."""
    return float(rows[:, FIRST_PHASE:].sum())


def epoch_start_ms(rows: Rows, loader: LoaderShape) -> float:
    """What the starts of epochs take per step, in ms: their mean, but for the first one if there are others, over the steps of an epoch.

    0 if there was only one, and epochs of the same iterator after it.
    """
    starts = rows[rows[:, EPOCH_START_MS] > 0]
    if not len(starts) or (len(starts) == 1 and loader.epoch_batches and rows[-1, NUMBER] - starts[0, NUMBER] > loader.epoch_batches):
        return 0.0
    distances = np.diff(starts[:, NUMBER])
    epoch_steps = loader.epoch_batches or (float(np.median(distances)) if len(distances) else len(rows))
    return float(starts[len(starts) > 1 :, EPOCH_START_MS].mean() / epoch_steps)


def _round_spans(rows: Rows, loader: LoaderShape) -> list[list[Span]]:
    """The steps of each round on rank 0: whole stretches, or a part of one. At least one round if there are 20 steps."""
    stretches = _split_stretches(rows)
    round_ms = min(ROUND_MS, step_ms(rows[WARMUP_STEPS:]) / MIN_ROUNDS)
    found, pending, pending_ms = list[list[Span]](), list[Span](), 0.0
    for index, stretch in enumerate(stretches):
        if not _is_measured_whole(stretch, loader) or _has_gap(stretches, index):
            found += [[span] for span in _cut_steady(stretch, loader, round_ms)]
        elif stretch[0, NUMBER] > 0 and _is_complete(stretches, index):
            pending.append(_span(stretch))
            pending_ms += step_ms(stretch)
        if pending_ms >= round_ms and _length(pending) >= MIN_ROUND_STEPS:
            found.append(pending)
            pending, pending_ms = [], 0.0
    has_long = any(step_ms(stretch) > WHOLE_STRETCH_MS for stretch in stretches)
    if not found or (len(found) < MIN_ROUNDS_AND_STEPS_FOR_VERDICT[0] and (has_long or not loader.prefetched)):
        steady = [[span] for stretch in stretches for span in _cut_steady(stretch, loader, round_ms)]
        found = max(found, steady, key=len)  # no, or hardly a short stretch is complete
    if not found and len(rows) >= 2 * WARMUP_STEPS:  # nor is one long enough for a round
        late = [stretch[stretch[:, NUMBER] >= WARMUP_STEPS] for stretch in stretches]
        found = [[_span(each) for each in late if len(each)]]
    return found


def _split_stretches(rows: Rows) -> list[Rows]:
    """Steps without a pause between them, or one that is not known."""
    breaks = 1 + np.flatnonzero((np.diff(rows[:, NUMBER]) != 1) | (np.diff(rows[:, STRETCH]) != 0))
    return [each for each in np.split(rows, breaks) if len(each)]


def _is_measured_whole(stretch: Rows, loader: LoaderShape) -> bool:
    """Whether a stretch takes little time, or workers load most of its batches at once."""
    return step_ms(stretch) <= WHOLE_STRETCH_MS or are_mostly_prefetched(len(stretch), loader.prefetched)


def _has_gap(stretches: Sequence[Rows], index: int) -> bool:
    """Whether steps before or after a stretch are not known: it may be part of a longer one."""
    neighbours = stretches[max(0, index - 1) : index + 2]
    return any(after[0, NUMBER] != before[-1, NUMBER] + 1 for before, after in pairwise(neighbours))


def _is_complete(stretches: Sequence[Rows], index: int) -> bool:
    """Whether a stretch has ended: the last one may still go on, unless it is as long as the one before."""
    return index + 1 < len(stretches) or len(stretches[index]) >= len(stretches[index - 1])


def _cut_steady(stretch: Rows, loader: LoaderShape, round_ms: float) -> Iterator[Span]:
    """Rounds of ``round_ms``, without the warm-up and the batches at the start of the stretch that workers had ready.

    A short stretch is one round.
    """
    warmup = WARMUP_STEPS if len(stretch) and stretch[0, NUMBER] == 0 else 1
    rows = stretch[max(warmup, min(loader.prefetched, len(stretch) // 2)) :]
    min_steps = min(loader.min_round_steps, max(MIN_ROUND_STEPS, len(rows)))
    end_ms = np.cumsum(rows[:, FIRST_PHASE:].sum(axis=1))
    first = 0
    while len(rows) - first >= min_steps:
        before_ms = end_ms[first - 1] if first else 0.0
        steps = max(min_steps, int(np.searchsorted(end_ms[first:] - before_ms, round_ms)) + 1)
        if first + steps > len(rows):
            if first:
                return  # the rest is shorter than a round
            steps = len(rows)
        yield int(rows[first, NUMBER]), int(rows[first, NUMBER]) + steps
        first += steps


def _span(rows: Rows) -> Span:
    return int(rows[0, NUMBER]), int(rows[-1, NUMBER]) + 1


def _length(spans: Sequence[Span]) -> int:
    return sum(end - first for first, end in spans)


def _spread(rounds: Sequence[list[Span]]) -> list[list[Span]]:
    """At most ``MAX_ROUNDS`` of ``rounds``, evenly spread."""
    if len(rounds) <= MAX_ROUNDS:
        return list(rounds)
    return [rounds[round(index * (len(rounds) - 1) / (MAX_ROUNDS - 1))] for index in range(MAX_ROUNDS)]


def _part_of(rows: Rows, spans: Sequence[Span], start_ms: float) -> Rows | None:
    """The steps of ``spans``, with ``start_ms`` of an epoch's start in each if they have none.

    None if some are missing, or a pause lies inside a span.
    """
    parts = []
    for first, end in spans:
        begin, stop = np.searchsorted(rows[:, NUMBER], [first, end])
        part = rows[begin:stop]
        if len(part) != end - first or part[0, STRETCH] != part[-1, STRETCH]:
            return None
        parts.append(part)
    return with_epoch_start(np.concatenate(parts), start_ms)


def with_epoch_start(rows: Rows, start_ms: float) -> Rows:
    """A copy of ``rows``, with ``start_ms`` of an epoch's start in each if they have none."""
    rows = rows.copy()
    if not rows[:, EPOCH_START_MS].any():
        rows[:, EPOCH_START_MS] = start_ms
    return rows


def make_trace(rank: int, rows: Rows, memory: Memory) -> Trace:
    """The trace of one rank with the steps ``rows``."""
    phases = {name: rows[:, FIRST_PHASE + index] for index, name in enumerate(PHASE_NAMES)}
    return Trace(
        rank=rank,
        steps=len(rows),
        samples=int(rows[:, SAMPLES].sum()),
        wall_s=step_ms(rows) / 1000,
        phases_ms={name: _rounded(durations) for name, durations in phases.items()},
        host_data_ms=_rounded(rows[:, HOST_DATA_MS]),
        host_lead_ms=[],  # unknown: a script may wait for the GPU anywhere in a step
        memory=memory,
        numerics=Numerics(first_loss=None, last_loss=None),
        thread_cpu_s=float(rows[:, THREAD_CPU_MS].sum()) / 1000,
    )


def _rounded(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    return [float(each) for each in values.round(4)]
