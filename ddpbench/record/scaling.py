"""Labels of a scaling job's arms, and its other measurements."""

from __future__ import annotations

import msgspec

from ddpbench.record.ranges import Amount, AtLeastOne, Count, Milliseconds, NonZero
from ddpbench.record.text import pluralize
from ddpbench.record.verdict import Verdict

SINGLE_NO_DDP, SINGLE_SHARD_BATCH = "one rank without DDP", "one rank, its share of the batch"
INDEPENDENT_RANKS, NO_SYNC, ALLREDUCE_ONLY, WITH_DATA = "every rank for itself", "no all-reduce", "all-reduce alone", "with data"
"""Labels of the arms other than DDP on 1, 2, 4 ... ranks.

one rank without DDP  the bare model on the first rank, with the batch that a rank of the full world has
one rank, its share   DDP with a world size of 1 and that batch (strong scaling only)
every rank for itself all ranks at once without DDP: they share host, power and bus, but do not communicate
no all-reduce         all ranks in DDP's no_sync(): its hooks run, but no gradients are sent
all-reduce alone      only all-reduces of DDP's buckets, one after another
with data             DDP on real batches
"""


def ddp_label(ranks: int) -> str:
    """Label of DDP on the first ``ranks`` ranks."""
    return pluralize(ranks, "rank")


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
    exposed_ms: Milliseconds = msgspec.field(name="bare_ms")


class Scaling(msgspec.Struct, kw_only=True):
    """Measurements of a scaling job outside its arms."""

    world_sizes: list[AtLeastOne] = msgspec.field(name="ladder")  # measured world sizes, the full world last
    strong_scaling: bool = msgspec.field(default=False, name="strong")  # the global batch size was constant
    bucket_bytes: list[Count] = []  # sizes of DDP's buckets on the full world, in all-reduce order
    allreduce_busbw: dict[AtLeastOne, NonZero] = msgspec.field(
        default={}, name="bus"
    )  # bytes of an all-reduce -> bus bandwidth without training, bytes/s
    busy_wait_cores: Amount | None = msgspec.field(
        default=None, name="waiting_cores"
    )  # cores that a paused rank kept busy; maximum over ranks
    overlap: Overlap | None = None
    skip_reasons: dict[str, str] = msgspec.field(default={}, name="left_out")  # measurement -> why it was skipped
    verdict: Verdict | None = None
