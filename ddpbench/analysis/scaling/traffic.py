"""What goes over the links in a step: how much, how fast against what they give, and how much of it the backward hides."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from ddpbench.analysis.scaling.arms import Arms, steps_of
from ddpbench.analysis.scaling.waterfall import ALL_REDUCE, DDP, STRAGGLER, Waterfall
from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.record import Record
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
    by_arms_ms: float | None  # what other ranks cost a step in all: DDP less DDP that sends nothing, more than on one rank
    by_clock_ms: float | None  # the same, put together from the terms of the way down
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


def traffic(arms: Arms, way: Waterfall | None) -> Traffic | None:
    """None where DDP's buckets were never seen."""
    if not arms.scaling.bucket_bytes:
        return None
    full, communication, overlap = arms.full, arms.communication, arms.scaling.overlap
    buckets = [size // _divisor(full) for size in arms.scaling.bucket_bytes]
    alone_ms = median(1000 * timed.wall_s / timed.traces[0].steps for timed in communication.rounds) if communication else None
    terms = {term.name: term.ms for term in way.terms} if way and arms.with_data is None else {}
    seen = 1 - overlap.bare_ms / overlap.communication_ms if overlap and overlap.communication_ms else None
    return Traffic(
        buckets=buckets,
        alone_ms=alone_ms,
        reached=bus_bandwidth(sum(buckets), alone_ms / 1000, arms.ranks) if alone_ms else None,
        ceiling=max(arms.scaling.bus.values(), default=None),
        exposed_ms=_exposed_ms(full, arms.share),
        by_arms_ms=_cost_ms(arms),
        by_clock_ms=sum(terms[name] for name in (ALL_REDUCE, STRAGGLER, DDP)) if DDP in terms else None,
        seen_hidden=seen,
    )


def _exposed_ms(full: Record | None, base: Record | None) -> float | None:
    """More than DDP takes between the last gradient and the update on one rank, which sends nothing."""
    if full is None or base is None:
        return None
    with_others, by_itself = (fmean(step.least_sync for step in steps_of(each).values()) for each in (full, base))
    return with_others - by_itself


def _cost_ms(arms: Arms) -> float | None:
    """Over the rounds that all four have. DDP copies gradients and broadcasts buffers also where there is nobody else."""
    if not (arms.full and arms.unsynced and arms.share and arms.alone):
        return None
    full, unsynced, one, alone = (steps_of(each) for each in (arms.full, arms.unsynced, arms.share, arms.alone))
    shared = full.keys() & unsynced.keys() & one.keys() & alone.keys()
    costs_ms = [full[index].wall - unsynced[index].wall - (one[index].wall - alone[index].wall) for index in shared]
    return fmean(costs_ms) if costs_ms else None


def _divisor(full: Record | None) -> int:
    if full is None or full.config.comm_hook not in HALVED:
        return 1
    return 2 if PRECISIONS[full.config.precision].model == "float32" else 1
