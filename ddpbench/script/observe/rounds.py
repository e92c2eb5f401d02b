"""Cuts the steps of a watched script into rounds: stretches of about three seconds, the same steps on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpbench.analysis.collective_wait import subsample_round
from ddpbench.analysis.rounds import collect_round
from ddpbench.analysis.run_length import MIN_BATCHES_PER_PRODUCER
from ddpbench.record.record import Round
from ddpbench.record.trace import PHASES, SCRIPT_PHASE, Memory, Numerics, Trace
from ddpbench.script.observe.rows import FIRST_PHASE, HOST_DATA_MS, NUMBER, SAMPLES, STRETCH, THREAD_CPU_MS, UPDATES, Rows

ROUND_MS = 3000.0
MIN_ROUND_STEPS = 5
WARMUP_STEPS = 10
"""Steps at the start of the training that belong to no round."""

MAX_ROUNDS, MAX_ROUND_STEPS = 20, 256
"""What a record keeps: rounds, spread over the training, and steps of each, spread over the round."""


@dataclass(frozen=True)
class Prefetch:
    """What the training loader has ready after a pause: these batches cost no wait, and are left out of rounds."""

    workers: int
    batches: int

    @property
    def min_round_steps(self) -> int:
        """Steps that a round needs, so that bursts of the workers average out."""
        return max(MIN_ROUND_STEPS, MIN_BATCHES_PER_PRODUCER * self.workers)


def cut_rounds(rows_of_rank: Sequence[Rows], prefetch: Prefetch, engine: str, memory: Mapping[int, Memory]) -> list[Round]:
    """The rounds of a training. ``rows_of_rank`` has the steps of every rank, ``memory`` the peak memory of ranks where it is known.

    Rank 0 decides where a round begins and ends. A round that another rank has not measured, or interrupted by a pause, is left out.
    """
    found: list[Round] = []
    last = min(rows[-1, NUMBER] if len(rows) else -1.0 for rows in rows_of_rank)  # of the rank that has ended, or sent steps, first
    common = rows_of_rank[0][rows_of_rank[0][:, NUMBER] <= last]
    for first, end in _spread(list(_round_bounds(common, prefetch))):
        parts = [part_of(rows, first, end) for rows in rows_of_rank]
        if all(part is not None for part in parts):
            traces = [make_trace(rank, part, memory.get(rank, Memory())) for rank, part in enumerate(parts) if part is not None]
            timed = collect_round(len(found), traces, engine)
            found.append(subsample_round(timed, -(-traces[0].steps // MAX_ROUND_STEPS)))
    return found


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


def _round_bounds(rows: Rows, prefetch: Prefetch) -> Iterator[tuple[int, int]]:
    """The first step of each round on rank 0, and the one after its last."""
    breaks = 1 + np.flatnonzero((np.diff(rows[:, NUMBER]) != 1) | (np.diff(rows[:, STRETCH]) != 0))
    for stretch in np.split(rows, breaks):
        warmup = WARMUP_STEPS if len(stretch) and stretch[0, NUMBER] == 0 else 1
        yield from _cut_stretch(stretch[max(warmup, prefetch.batches) :], prefetch.min_round_steps)


def _cut_stretch(rows: Rows, min_steps: int) -> Iterator[tuple[int, int]]:
    """Rounds of ``ROUND_MS`` and at least ``min_steps`` steps; a shorter stretch is one round."""
    end_ms = np.cumsum(rows[:, FIRST_PHASE:].sum(axis=1))
    first = 0
    while len(rows) - first >= min_steps:
        before_ms = end_ms[first - 1] if first else 0.0
        steps = max(min_steps, int(np.searchsorted(end_ms[first:] - before_ms, ROUND_MS)) + 1)
        if first + steps > len(rows):
            if first:
                return  # the rest is shorter than a round
            steps = len(rows)
        yield int(rows[first, NUMBER]), int(rows[first, NUMBER]) + steps
        first += steps


def _spread(bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most ``MAX_ROUNDS`` of ``bounds``, evenly spread."""
    if len(bounds) <= MAX_ROUNDS:
        return list(bounds)
    return [bounds[round(index * (len(bounds) - 1) / (MAX_ROUNDS - 1))] for index in range(MAX_ROUNDS)]


def part_of(rows: Rows, first: int, end: int) -> Rows | None:
    """The steps from ``first`` to ``end``; None if some are missing, or a pause lies between them."""
    begin, stop = np.searchsorted(rows[:, NUMBER], [first, end])
    part = rows[begin:stop]
    return part if len(part) == end - first and part[0, STRETCH] == part[-1, STRETCH] else None


def make_trace(rank: int, rows: Rows, memory: Memory) -> Trace:
    """The trace of one rank with the steps ``rows``."""
    phases = {name: rows[:, FIRST_PHASE + index] for index, name in enumerate((*PHASES, SCRIPT_PHASE))}
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
