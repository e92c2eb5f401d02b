"""What the arms of a scaling job are called, and what was learned beside them."""

from __future__ import annotations

import msgspec

from ddpbench.record.findings import Verdict
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Milliseconds, NonZero
from ddpbench.record.text import count

ALONE, SHARE = "one rank without DDP", "one rank, its share of the batch"
APART, UNSYNCED, COMMUNICATION, WITH_DATA = "every rank for itself", "no all-reduce", "all-reduce alone", "with data"
"""The arms beside the ladder.

one rank without DDP  the bare model on the first rank, with the batch that a rank of the whole world has
one rank, its share   DDP with a world of one and that batch, where the global batch is kept
every rank for itself all ranks at once without DDP: they share host, power and bus, and say nothing to each other
no all-reduce         all ranks in DDP's no_sync(): its hooks run, and nothing is sent
all-reduce alone      DDP's own buckets, all-reduced one after the other, and nothing else
with data             DDP on real batches
"""


def rung(ranks: int) -> str:
    """The label of DDP on the first ``ranks`` ranks."""
    return count(ranks, "rank")


def bus_bandwidth(size: float, seconds: float, ranks: int) -> float:
    """Bytes/s that each link carries where so many ranks sum ``size`` bytes in ``seconds``, whatever their number (as nccl-tests count)."""
    return 2 * (ranks - 1) / ranks * size / seconds


class Kernel(msgspec.Struct, frozen=True):
    """One communication kernel on one rank, in ms. It spins until the last rank has begun it."""

    ms: float
    bare_ms: float  # of these, beside no other kernel


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """From a profiler window: milliseconds a step of all-reduce kernels where they were shortest, and of those beside no other kernel."""

    communication_ms: Milliseconds
    bare_ms: Milliseconds


class Scaling(msgspec.Struct, kw_only=True):
    """One ladder, and the links that it climbs over."""

    ladder: list[AtLeastOne]  # ranks of each rung, the whole world last
    strong: bool = False  # the global batch was kept
    bucket_bytes: list[Count] = []  # of DDP's buckets on the whole world, in the order of their all-reduces
    bus: dict[AtLeastOne, NonZero] = {}  # bytes of an all-reduce -> bus bandwidth that it reached with nobody training, bytes/s
    waiting_cores: Amount | None = None  # cores that a rank kept busy while it waited for the others' turns, the most of any
    overlap: Overlap | None = None
    left_out: dict[str, str] = {}  # what was not measured -> why
    verdict: Verdict | None = None  # of the whole job
