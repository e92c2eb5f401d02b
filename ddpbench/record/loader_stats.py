"""What a data loader did: time per stage, hand-offs, and the CPU usage meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import TypeVar

import msgspec

from ddpbench.record.ranges import AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds, Seconds

STAGES = ("read", "decode", "augment", "sample", "collate")
"""What a worker does for an image, in order.

read     the file, from storage or the page cache into memory
decode   from the file's bytes to pixels
augment  crop, flip, resize, to a tensor, normalise: all that is done to one sample
sample   all of these, where a loader of somebody's own does not tell them apart
collate  one batch of the samples
"""


class LoaderStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's loader workers did for the batches that the rank took in one round; stages as far as they can be told apart."""

    images: Count
    cpu_s: dict[str, Seconds] = {}  # stage -> CPU seconds of the workers
    wall_s: dict[str, Seconds] = {}  # stage -> wall seconds in the workers; more than cpu_s where they stood for storage or for a core
    runqueue_wait_s: Seconds | None = msgspec.field(
        default=None, name="queued_s"
    )  # of wall_s, what the workers waited for a core that was free; None where the kernel does not tell
    batch_ms: list[Milliseconds] = []  # wall time of making each batch in its worker; of one of every n above 64 ranks
    handoff_ms: Difference | None = msgspec.field(
        default=None, name="hand_over_ms"
    )  # mean, of batches that the trainer stood waiting for: the wait after they were made
    head_of_line_fraction: Fraction | None = msgspec.field(
        default=None, name="head_of_line"
    )  # of the wait for data, while a later batch was ready, and not the one whose turn it was
    skipped_files: list[str] = msgspec.field(
        default=[], name="left_out"
    )  # why, for each file that could not be read (--skip-bad): once a loader, before the round or in it

    def prepend_skipped_files(self, earlier: LoaderStats | None) -> LoaderStats:
        """The same, with the files that were left out ``earlier`` and are told nowhere else."""
        return self if earlier is None else msgspec.structs.replace(self, skipped_files=[*earlier.skipped_files, *self.skipped_files])

    def subsample_batches(self, every: int) -> LoaderStats:
        """The same of fewer batches: one of every ``every``."""
        return msgspec.structs.replace(self, batch_ms=subsample(every, self.batch_ms))


class CpuUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The processor cores of one node in one round, as one of its ranks saw them."""

    num_cores: AtLeastOne = msgspec.field(name="cores")  # those that this rank may run on
    busy_s: Difference  # seconds that they were busy, with whomever: those that a hypervisor took for other machines among them
    wall_s: Elapsed
    throttled_s: Difference | None = None  # seconds for which a CPU quota stopped this job, summed over cores; None without a quota
    cpu_pressure_fraction: Fraction | None = msgspec.field(
        default=None, name="pressure"
    )  # share of the time in which some thread of the machine waited for a core (PSI); None where not told


def sum_by_stage(stage_times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum over all of ``stage_times``, for each stage that any of them has."""
    total: Counter[str] = Counter()
    for each in stage_times:
        total.update(each)
    return dict(total)


Value = TypeVar("Value")

GOLDEN_RATIO_CONJUGATE = (sqrt(5) - 1) / 2
"""Of all fractions the one whose multiples fall least into step with anything."""


def subsample(every: int, values: Sequence[Value]) -> list[Value]:
    """One of every ``every`` values, each time at another place among them, the same for all lists of one length.

    What comes back every few steps, as the bursts of loader workers do, is then as frequent among them as among all: of every fourth
    step of a loader with four workers either all are late or none.
    """
    groups = (values[begin : begin + every] for begin in range(0, len(values), every))
    return [group[int(len(group) * (number * GOLDEN_RATIO_CONJUGATE % 1))] for number, group in enumerate(groups)]
