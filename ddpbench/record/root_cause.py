"""Root causes of a data-bound run, and the evidence that shows each or leaves it open."""

from __future__ import annotations

from typing import Literal

from ddpbench.record.bottleneck import Evidence
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Fraction, Milliseconds

Cause = Literal[
    "too-few-workers",  # more loader workers would help, and there are cores for them
    "too-few-cores",  # no number of workers can feed the devices from these cores
    "oversubscribed",  # more workers than cores: they take turns
    "quota",  # a CPU quota stops the workers
    "storage",  # files cannot be read as fast
    "decode",  # decoding takes most of an image's cost
    "augment",  # augmentation takes most of an image's cost
    "collate",  # putting batches together takes most of an image's cost
    "one-by-one",  # samples that lie in memory are fetched one by one, and collated
    "slow-sampler",  # the trainer process draws the indices of batches too slowly
    "handoff",  # the trainer process takes batches over too slowly: collate, pickling or the pin thread
    "head-of-line",  # batches are ready, but not the one whose turn it is
    "one-rank",  # one rank's loader is slow, and the others wait for it
]
"""Root causes of a data-bound run; of a straggler, only ``one-rank``."""

CpuStage = Literal["decode", "augment", "collate"]
"""The CPU-bound stages of loading an image."""

WorkerLimit = Literal["device", "handoff", "memory", "cores"]
"""What limits the rate of more workers: the device keeps busy, the trainer process takes no more, memory is full, cores are."""


class CpuQuota(Evidence, frozen=True, kw_only=True, tag="cpu-quota"):
    """Quota: it withholds part of the CPU time that the job asks for."""

    usable_cores: Amount  # what the quota leaves
    cores: Count
    throttled_fraction: Fraction  # of the CPU time that the job asked for


class OneByOne(Evidence, frozen=True, kw_only=True, tag="one-by-one"):
    """One by one: samples that lie in memory are fetched singly, and collated. Rates are per rank, without training."""

    samples_per_s: Amount
    resident_samples_per_s: Amount  # of ``ddpbench.loaders.resident``


class SlowSampler(Evidence, frozen=True, kw_only=True, tag="slow-sampler"):
    """Slow sampler: the trainer waits while its own process draws indices, which no worker takes over."""

    sampler_fraction: Fraction  # of the wait for data
    batch_ms: Milliseconds  # to draw the indices of a batch


class SlowHandoff(Evidence, frozen=True, kw_only=True, tag="slow-handoff"):
    """Handoff: finished batches reach the trainer late."""

    handoff_fraction: Fraction  # of the wait for a batch, after its worker finished it
    worker_busy_fraction: Fraction | None = None  # None if unknown, or if the workers are busy


class HandoffOrWorkers(Evidence, frozen=True, kw_only=True, tag="handoff-or-workers"):
    """Open: the wait is about evenly split between making batches and the handoff."""

    handoff_fraction: Fraction


class HeadOfLine(Evidence, frozen=True, kw_only=True, tag="head-of-line"):
    """Head of line: a later batch was ready, and the workers are fast enough on average."""

    blocked_fraction: Fraction  # of the wait for data, in which a later batch was ready
    worker_samples_per_s: Amount


class HeadOfLineOrWorkers(Evidence, frozen=True, kw_only=True, tag="head-of-line-or-workers"):
    """Open: a later batch was often ready, but the workers are hardly fast enough."""

    blocked_fraction: Fraction
    workers: Count


class ReadWait(Evidence, frozen=True, kw_only=True, tag="read-wait"):
    """Storage: workers wait for files most of the time. Times are per image."""

    sample_ms: Milliseconds
    read_wait_ms: Milliseconds


class ReadWaitOrCores(Evidence, frozen=True, kw_only=True, tag="read-wait-or-cores"):
    """Open: workers wait in file reads, but all cores are busy, so that part of it may be waits for a core."""

    sample_ms: Milliseconds
    read_wait_ms: Milliseconds


class StorageRate(Evidence, frozen=True, kw_only=True, tag="storage-rate"):
    """Storage: its files cannot be read as fast as the devices train. Per device."""

    samples_per_s: Amount


class ReadAndDecodeWait(Evidence, frozen=True, kw_only=True, tag="read-and-decode-wait"):
    """Storage: workers that read and decode in one stage wait, but not for a core. Times are per image."""

    sample_ms: Milliseconds
    blocked_ms: Milliseconds


class BlockedWorkers(Evidence, frozen=True, kw_only=True, tag="blocked-workers"):
    """Open: workers wait for neither a core nor a known file read. Times are per image."""

    sample_ms: Milliseconds
    blocked_ms: Milliseconds
    single_rank_speedup: Amount | None = None  # loader rate of one rank alone over that with all ranks loading; None if unknown


class TriedWorkers(Evidence, frozen=True, kw_only=True, tag="tried-workers"):
    """Too few workers, or open if the trial gained little: workers that wait for neither a core nor a known file read.

    Times are per image; ``gain`` is the throughput with ``more_workers`` as a multiple of that with ``workers``: of the training or, with
    ``is_loader_only``, of a benchmark of the loader.
    """

    sample_ms: Milliseconds
    blocked_ms: Milliseconds
    workers: Count
    more_workers: Count
    gain: Amount
    is_loader_only: bool = False


class TimeOutsideSamples(Evidence, frozen=True, kw_only=True, tag="time-outside-samples"):
    """Open: most of a wait of a trainer that loads its batches itself passes neither in the dataset nor in the collate function."""

    wait_ms: Milliseconds  # per image
    sample_ms: Milliseconds  # of it, in the dataset and the collate function


class ComparedWorkers(Evidence, frozen=True, kw_only=True, tag="compared-workers"):
    """Too few workers, or open if more were no faster, whatever their costs promise.

    ``gain`` is the throughput with ``more_workers`` as a multiple of that with ``workers``: of the training or, with ``is_loader_only``, of
    a benchmark of the loader.
    """

    workers: Count
    samples_per_s: Amount  # that these workers can load
    more_workers: Count
    gain: Amount
    is_loader_only: bool = False


class IdleWorkers(Evidence, frozen=True, kw_only=True, tag="idle-workers"):
    """Open: workers wait although cores are free."""

    busy_fraction: Fraction


class OversubscribedWorkers(Evidence, frozen=True, kw_only=True, tag="oversubscribed-workers"):
    """Oversubscribed: far more workers than cores."""

    workers: Count  # of the node
    usable_cores: Amount
    core_samples_per_s: Amount | None = None  # the most that the cores could load, per device; None if unknown


class DominantStage(Evidence, frozen=True, kw_only=True, tag="dominant-stage"):
    """Decode, augment or collate: one stage explains nearly all of the missing time. Rates are per device."""

    stage: CpuStage
    cpu_fraction: Fraction  # of the CPU time per image
    usable_cores: Amount
    samples_per_s: Amount  # of the cores
    samples_per_s_without: Amount | None = None  # without the stage; None if nothing else costs CPU time


class BusyCores(Evidence, frozen=True, kw_only=True, tag="busy-cores"):
    """Too few cores: the job keeps all of them busy, and its loader does not report its cost."""

    usable_cores: Amount
    job_cores: Amount


class SharedBusyCores(Evidence, frozen=True, kw_only=True, tag="shared-busy-cores"):
    """Open: the job and other processes keep all cores busy, and the loader does not report its cost."""

    usable_cores: Amount
    job_cores: Amount
    other_cores: Amount


class TooFewCores(Evidence, frozen=True, kw_only=True, tag="too-few-cores"):
    """Too few cores: no number of workers can feed the devices. Rates and ``cores_needed`` are per device."""

    ranks: AtLeastOne  # of the node
    usable_cores: Amount  # of the node
    trainer_cores: Count  # of the node, that the trainer processes need
    core_samples_per_s: Amount | None  # of the cores; None if the trainers leave none
    cores_needed: Amount
    handoff_samples_per_s: Amount | None = None  # the most that a trainer process takes over, if that is less than its device trains
    samples_per_s_per_core: Amount | None = None  # that one more core for each device would load; None in older records


class TooFewWorkers(Evidence, frozen=True, kw_only=True, tag="too-few-workers"):
    """Too few workers: more would load faster. All per device."""

    workers: Count
    samples_per_s: Amount
    more_workers: Count
    more_samples_per_s: Amount
    limited_by: WorkerLimit
    usable_cores: Amount  # of the node
    samples_per_s_per_core: Amount | None = None  # as in ``TooFewCores``


class BusyCoresUnexplained(Evidence, frozen=True, kw_only=True, tag="busy-cores-unexplained"):
    """Open: all cores are busy, but loading does not need that many."""

    usable_cores: Amount


class EnoughWorkers(Evidence, frozen=True, kw_only=True, tag="enough-workers"):
    """Open: on average the workers are fast enough. Per device."""

    workers: Count
    samples_per_s: Amount


class UndecidedCause(Evidence, frozen=True, kw_only=True, tag="undecided-cause"):
    """Open: resamples that name the same bottleneck disagree on its cause. None stands for an unknown cause."""

    first: Cause | None
    first_fraction: Fraction  # of these resamples
    second: Cause | None
    second_fraction: Fraction


CauseEvidence = (
    CpuQuota
    | OneByOne
    | SlowSampler
    | SlowHandoff
    | HandoffOrWorkers
    | HeadOfLine
    | HeadOfLineOrWorkers
    | ReadWait
    | ReadWaitOrCores
    | StorageRate
    | ReadAndDecodeWait
    | BlockedWorkers
    | IdleWorkers
    | OversubscribedWorkers
    | DominantStage
    | BusyCores
    | SharedBusyCores
    | TooFewCores
    | TooFewWorkers
    | TriedWorkers
    | ComparedWorkers
    | TimeOutsideSamples
    | BusyCoresUnexplained
    | EnoughWorkers
    | UndecidedCause
)
