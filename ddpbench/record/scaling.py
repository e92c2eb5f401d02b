"""What the arms of a scaling job are called, and what was learned beside them."""

from __future__ import annotations

import msgspec

from ddpbench.record.findings import Verdict
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Milliseconds, NonZero
from ddpbench.record.text import pluralize

SINGLE_NO_DDP, SINGLE_SHARD_BATCH = "one rank without DDP", "one rank, its share of the batch"
INDEPENDENT_RANKS, NO_SYNC, ALLREDUCE_ONLY, WITH_DATA = "every rank for itself", "no all-reduce", "all-reduce alone", "with data"
"""The arms beside the ladder.

one rank without DDP  the bare model on the first rank, with the batch that a rank of the whole world has
one rank, its share   DDP with a world of one and that batch, where the global batch is kept
every rank for itself all ranks at once without DDP: they share host, power and bus, and say nothing to each other
no all-reduce         all ranks in DDP's no_sync(): its hooks run, and nothing is sent
all-reduce alone      DDP's own buckets, all-reduced one after the other, and nothing else
with data             DDP on real batches
"""


def ddp_label(ranks: int) -> str:
    """The label of DDP on the first ``ranks`` ranks."""
    return pluralize(ranks, "rank")


def bus_bandwidth(size_bytes: float, seconds: float, ranks: int) -> float:
    """Bytes/s on each link if so many ranks sum ``size_bytes`` in ``seconds``: the bus bandwidth of nccl-tests."""
    return 2 * (ranks - 1) / ranks * size_bytes / seconds


class CommKernel(msgspec.Struct, frozen=True):
    """One communication kernel on one rank, in ms. It spins until the last rank has begun it."""

    duration_ms: float
    exposed_ms: float  # of these, beside no other kernel


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """From a profiler window: milliseconds a step of all-reduce kernels where they were shortest, and of those beside no other kernel."""

    communication_ms: Milliseconds
    exposed_ms: Milliseconds = msgspec.field(name="bare_ms")


class Scaling(msgspec.Struct, kw_only=True):
    """One ladder, and the links that it climbs over."""

    world_sizes: list[AtLeastOne] = msgspec.field(name="ladder")  # ranks of each rung, the whole world last
    strong_scaling: bool = msgspec.field(default=False, name="strong")  # the global batch was kept
    bucket_bytes: list[Count] = []  # of DDP's buckets on the whole world, in the order of their all-reduces
    allreduce_busbw: dict[AtLeastOne, NonZero] = msgspec.field(
        default={}, name="bus"
    )  # bytes of an all-reduce -> bus bandwidth that it reached with nobody training, bytes/s
    busy_wait_cores: Amount | None = msgspec.field(
        default=None, name="waiting_cores"
    )  # cores that a rank kept busy while it waited for the others' turns, the most of any
    overlap: Overlap | None = None
    skip_reasons: dict[str, str] = msgspec.field(default={}, name="left_out")  # what was not measured -> why
    verdict: Verdict | None = None  # of the whole job
