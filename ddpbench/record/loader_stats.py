"""Loader statistics: time per stage, handoff times, and CPU usage of the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import TypeVar

import msgspec

from ddpbench.record.private import FileMessage
from ddpbench.record.ranges import AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds, Seconds

STAGES = ("read", "decode", "augment", "sample", "collate")
"""Stages of a loader worker, in order.

read     read the file from storage or the page cache
decode   decode its bytes to pixels
augment  crop, flip, resize, convert to a tensor, normalise: all transforms of one sample
sample   all of the above, if a user-defined loader does not time them separately
collate  collate samples into a batch
"""


class LoaderStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one rank's loader workers, for the batches that the rank consumed in one round.

    Stages appear only if the loader times them separately.
    """

    samples: Count
    cpu_s: dict[str, Seconds] = {}  # stage -> CPU seconds of the workers
    wall_s: dict[str, Seconds] = {}  # stage -> wall seconds in the workers; more than cpu_s if they waited for storage or a core
    parts_s: dict[str, Seconds] = {}  # class of a transform -> wall seconds, part of those of its stage
    runqueue_wait_s: Seconds | None = None  # part of wall_s in which workers were runnable but had no core; None if unknown
    batch_ms: list[Milliseconds] = []  # wall time of each batch in its worker; only one of every n batches above 64 ranks
    sampler_s: Seconds | None = None  # in which the trainer drew the indices of batches; None if it was not timed
    num_waits: Count | None = None  # batches that the trainer waited for; None in records of earlier versions
    waited_ms: Milliseconds | None = None  # sum of these waits
    handoff_ms: Difference | None = None  # mean wait after a batch was ready, over the batches that the trainer waited for
    head_of_line_fraction: Fraction | None = None  # fraction of the wait for data in which a later batch was ready but not the next one
    skipped_files: list[FileMessage] = []  # one message per unreadable file (--skip-bad), once per loader, before or during the round

    def prepend_skipped_files(self, earlier: LoaderStats | None) -> LoaderStats:
        """A copy that also lists the files skipped in ``earlier``, which is not recorded."""
        return self if earlier is None else msgspec.structs.replace(self, skipped_files=[*earlier.skipped_files, *self.skipped_files])

    def subsample_batches(self, every: int) -> LoaderStats:
        """A copy with the times of one of every ``every`` batches."""
        return msgspec.structs.replace(self, batch_ms=subsample(every, self.batch_ms))


class CpuUsage(msgspec.Struct, frozen=True, kw_only=True):
    """CPU usage of one node during one round, as seen by one of its ranks."""

    num_cores: AtLeastOne  # cores that this rank may run on
    busy_s: Difference  # core-seconds busy, by any process, including time stolen by the hypervisor
    wall_s: Elapsed
    throttled_s: Difference | None = None  # seconds throttled by a CPU quota, summed over cores; None without a quota
    cpu_pressure_fraction: Fraction | None = (
        None  # fraction of time in which some thread of the machine waited for a core (PSI); None if unknown
    )


def sum_by_stage(stage_times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum over ``stage_times`` of each stage that any of them has."""
    total: Counter[str] = Counter()
    for each in stage_times:
        total.update(each)
    return dict(total)


Value = TypeVar("Value")

GOLDEN_RATIO_CONJUGATE = (sqrt(5) - 1) / 2
"""The fraction whose multiples are the least periodic."""


def subsample(every: int, values: Sequence[Value]) -> list[Value]:
    """One value from every group of ``every``, at a varying position, which is the same for all lists of one length.

    The varying position avoids aliasing with periodic events such as bursts of loader workers: with four workers, a fixed
    position would pick only late steps or none.
    """
    groups = (values[begin : begin + every] for begin in range(0, len(values), every))
    return [group[int(len(group) * (number * GOLDEN_RATIO_CONJUGATE % 1))] for number, group in enumerate(groups)]
