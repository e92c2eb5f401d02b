"""What goes over the links in a step: how much, how fast against what they give, and how much of it the backward hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ddpbench.analysis.scaling.runs import Arms, steps_of
from ddpbench.analysis.stats import steady_mean
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.scaling import bus_bandwidth

HALVED = ("fp16", "bf16")
"""Communication hooks that send float32 gradients with half their bytes."""


@dataclass(frozen=True)
class Traffic:
    """What DDP's buckets mean for the links. Rates are bytes/s; None where the arm for it is missing."""

    buckets: list[int]  # bytes on the wire, in the order of their all-reduces
    alone_ms: float | None  # for all of them, with nobody training
    reached: float | None  # bus bandwidth of them
    ceiling: float | None  # the most that any size of all-reduce reached
    exposed_ms: float | None  # of them, what a step waits for, by the clock
    by_arms_ms: float | None  # what other ranks cost a step in all, by the turns in which nothing is sent
    by_clock_ms: float | None  # the same, by what ranks wait and by how much more slowly they compute
    seen_hidden: float | None  # the share hidden, by the profiler

    @property
    def total(self) -> int:
        return sum(self.buckets)

    @property
    def hidden(self) -> float | None:
        """The share of ``alone_ms`` that runs beside the backward."""
        if not self.alone_ms or self.exposed_ms is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_ms / self.alone_ms))


def traffic(arms: Arms) -> Traffic | None:
    """None where DDP's buckets were never seen."""
    if not arms.scaling.bucket_bytes:
        return None
    full, communication, overlap = arms.full, arms.communication, arms.scaling.overlap
    buckets = [size // _divisor(full) for size in arms.scaling.bucket_bytes]
    alone_ms = median(1000 * timed.wall_s / timed.traces[0].steps for timed in communication.rounds) if communication else None
    seen = 1 - overlap.bare_ms / overlap.communication_ms if overlap and overlap.communication_ms else None
    return Traffic(
        buckets=buckets,
        alone_ms=alone_ms,
        reached=bus_bandwidth(sum(buckets), alone_ms / 1000, arms.ranks) if alone_ms else None,
        ceiling=max(arms.scaling.bus.values(), default=None),
        exposed_ms=_exposed_ms(full, arms.share),
        by_arms_ms=_by_arms_ms(arms),
        by_clock_ms=_by_clock_ms(arms),
        seen_hidden=seen,
    )


def _exposed_ms(full: Record | None, base: Record | None) -> float | None:
    """More than DDP takes between the last gradient and the update on one rank, which sends nothing."""
    if full is None or base is None:
        return None
    with_others, by_itself = (steady_mean([step.least_sync for step in steps_of(each).values()]) for each in (full, base))
    return with_others - by_itself


def _by_arms_ms(arms: Arms) -> float | None:
    """DDP less DDP that sends nothing, as far as it is more than on one rank: there, too, it copies gradients and broadcasts buffers."""
    return _mean(
        lambda full, unsynced, one, alone: full.wall - unsynced.wall - (one.wall - alone.wall),
        [arms.full, arms.unsynced, arms.share, arms.alone],
    )


def _by_clock_ms(arms: Arms) -> float | None:
    """What ranks wait and compute longer in DDP than each for itself, as far as it is more than on one rank."""
    return _mean(
        lambda full, apart, one, alone: full.busy + full.wait - full.late_data - apart.busy - (one.busy + one.wait - alone.busy),
        [arms.full, arms.apart, arms.share, arms.alone],
    )


def _mean(of_steps: Callable[..., float], records: Sequence[Record | None]) -> float | None:
    """That of the rounds that all ``records`` have; None where there is none."""
    there = [steps_of(record) for record in records if record]
    if len(there) < len(records):
        return None
    shared = set.intersection(*(set(steps) for steps in there))
    return steady_mean([of_steps(*(steps[index] for steps in there)) for index in shared]) if shared else None


def _divisor(full: Record | None) -> int:
    if full is None or full.config.comm_hook not in HALVED:
        return 1
    return 2 if PRECISIONS[full.config.precision].model == "float32" else 1
