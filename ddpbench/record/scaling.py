"""Measurements of a scaling job outside its arms."""

from __future__ import annotations

import msgspec

from ddpbench.record.ranges import Amount, AtLeastOne, Count, Milliseconds, NonZero
from ddpbench.record.roles import SkippedMeasurement
from ddpbench.record.verdict import ScalingVerdict


def bus_bandwidth(size_bytes: float, seconds: float, ranks: int) -> float:
    """Bus bandwidth in bytes/s, as defined by nccl-tests, of an all-reduce of ``size_bytes`` in ``seconds``."""
    return 2 * (ranks - 1) / ranks * size_bytes / seconds


class CommKernel(msgspec.Struct, frozen=True):
    """One communication kernel on one rank, in ms. It spins until the last rank has started it."""

    duration_ms: float
    exposed_ms: float  # part of the duration that overlaps no other kernel


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduce kernel time per step in ms, from a profiler window, on the rank where each was shortest.

    ``exposed_ms`` is the part that overlaps no other kernel.
    """

    communication_ms: Milliseconds
    exposed_ms: Milliseconds


class Scaling(msgspec.Struct, kw_only=True):
    """Measurements of a scaling job outside its arms."""

    world_sizes: list[AtLeastOne]  # measured world sizes, the full world last
    strong_scaling: bool = False  # the global batch size was constant
    bucket_bytes: list[Count] = []  # sizes of DDP's buckets on the full world, in all-reduce order
    allreduce_busbw: dict[AtLeastOne, NonZero] = {}  # bytes of an all-reduce -> bus bandwidth without training, bytes/s
    busy_wait_cores: Amount | None = None  # cores that a paused rank kept busy; maximum over ranks
    overlap: Overlap | None = None
    skipped: list[SkippedMeasurement] = []
    verdict: ScalingVerdict | None = None
