"""Bottlenecks of a run, and the evidence that shows each."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.ranges import Amount, AtLeastOne, Count, Fraction, Milliseconds, RelativeChange

Bottleneck = Literal[
    "straggler",  # one rank is slow and the others wait for it
    "loader-contends-cpu",  # the data loader takes cores that the training needs
    "loader-contends-gpu",  # the data loader takes GPU time from the training
    "noisy-neighbour",  # processes outside the job load the machine
    "epoch-start-bound",  # the devices wait for the workers that start at every epoch
    "data-bound",  # the devices wait for data
    "host-to-device-bound",  # batch copies to the device are the bottleneck
    "load-imbalance",  # ranks wait for those with larger batches
    "launch-bound",  # the host cannot issue kernels fast enough
    "sync-bound",  # exposed gradient all-reduce is the bottleneck
    "compute-bound",  # the device is busy computing
    "inconclusive",  # two bottlenecks compete, or there are too few rounds
]
"""Every bottleneck, in the order in which they are tested: the first that applies is the verdict."""

StragglerKind = Literal["data", "host-to-device", "compute", "clock", "host"]
"""Where the extra time of a slow rank goes; "host" if the host delays its device, or the machine its process."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """What shows a bottleneck, a root cause or a loss, in numbers. Times are per step."""


class SlowRank(Evidence, frozen=True, kw_only=True, tag="slow-rank"):
    """Straggler: one rank has more own time than the others in every round."""

    rank: Count
    slow_in: StragglerKind
    excess_fraction: RelativeChange  # of its own time, over the others'
    own_ms: Milliseconds
    others_own_ms: Milliseconds  # their median
    cost_samples_per_s: Amount  # what all ranks together lose
    largest_over_mean: Amount | None = None  # elements of the largest batch of a step over the mean of all ranks, if they are unequal


class LoaderInBackground(Evidence, frozen=True, kw_only=True, tag="loader-in-background"):
    """Loader contends for CPU or GPU: compute-only training is slower while the loader runs."""

    slowdown_fraction: RelativeChange
    compute_only_ms: Milliseconds
    with_loader_ms: Milliseconds  # compute-only training with the loader in the background
    data_wait_ms: Milliseconds  # of the run
    step_ms: Milliseconds  # of the run


class CoresTakenByWorkers(Evidence, frozen=True, kw_only=True, tag="cores-taken-by-workers"):
    """Loader contends for CPU: computing CPU ranks get too few cores, and loader workers keep the rest busy."""

    slowdown_fraction: RelativeChange
    rank_cores: Amount  # that a rank gets while it computes
    needed_cores: Amount  # that it keeps busy at least
    worker_cores: Amount  # that all workers of the node keep busy
    usable_cores: Amount


class StarvedRanks(Evidence, frozen=True, kw_only=True, tag="starved-ranks"):
    """Noisy neighbour: computing CPU ranks get too few cores, though the job asks for no more than there are."""

    cores_by_rank: dict[Count, Amount]  # cores that each starved rank got
    job_cores: Count  # that the job asks for
    usable_cores: Amount


class CoresTakenByOthers(Evidence, frozen=True, kw_only=True, tag="cores-taken-by-others"):
    """Noisy neighbour: other processes keep cores busy, and none is left."""

    cores: Count  # that the job may use
    other_cores: Amount
    job_cores: Amount
    other_cores_before: Amount | None = None  # before the job ran anything; None if unknown or none


class EpochStarts(Evidence, frozen=True, kw_only=True, tag="epoch-starts"):
    """Epoch-start-bound: the devices wait for workers to end and start, unless those stay, and to load their first batch."""

    fraction: Amount  # of the training
    start_s: Amount | None = None  # of an epoch; None if the number of its batches is unknown
    epoch_s: Amount | None = None
    workers: Count
    keeps_workers: bool = False  # over epochs: ``persistent_workers=True``


class DataWait(Evidence, frozen=True, kw_only=True, tag="data-wait"):
    """Data-bound: the devices wait for batches. Rates are per device."""

    wait_fraction: Amount  # of a step
    loader_samples_per_s: Amount
    device_samples_per_s: Amount  # that it could train


class BatchPreparation(Evidence, frozen=True, kw_only=True, tag="batch-preparation"):
    """Data-bound: the trainer processes of CPU ranks finish the batches themselves."""

    prepare_ms: Milliseconds
    step_ms: Milliseconds


class CopyWait(Evidence, frozen=True, kw_only=True, tag="copy-wait"):
    """Host-to-device-bound: the devices wait for copies. Bandwidths only if measured and memory is not pinned."""

    copy_ms: Milliseconds
    step_ms: Milliseconds
    pageable_bytes_per_s: Amount | None = None
    pinned_bytes_per_s: Amount | None = None


class HostBatches(Evidence, frozen=True, kw_only=True, tag="host-batches"):
    """Host-to-device-bound: training on batches in host memory is slower than on batches on the device."""

    slowdown_fraction: RelativeChange
    extra_ms: Milliseconds
    step_ms: Milliseconds  # on batches in host memory


class IdleGpu(Evidence, frozen=True, kw_only=True, tag="idle-gpu"):
    """Launch-bound: kernels run for only part of the time in which the GPU waits for nothing else."""

    kernel_ms: Milliseconds
    available_ms: Milliseconds


class ShortHostLead(Evidence, frozen=True, kw_only=True, tag="short-host-lead"):
    """Launch-bound: the host hardly runs ahead of the GPU."""

    host_lead_ms: Milliseconds
    step_ms: Milliseconds


class UnequalBatches(Evidence, frozen=True, kw_only=True, tag="unequal-batches"):
    """Load imbalance: ranks wait for whichever has the largest batch of a step, and computes longest."""

    wait_ms: Milliseconds  # mean over ranks, without waits for late data and without communication
    step_ms: Milliseconds
    largest_over_mean: Amount  # elements of the largest batch of a step, as a multiple of the mean of all ranks


class CollectiveWaits(Evidence, frozen=True, kw_only=True, tag="collective-waits"):
    """Sync-bound: ranks wait in collectives that backward does not hide.

    ``wait_ms`` is the mean over ranks, without waits for late data. Unlike ``exposed_comm_ms`` in ``analysis/collective_wait.py`` it
    includes waits for slow ranks.
    """

    wait_ms: Milliseconds
    step_ms: Milliseconds


class SyncSlowdown(Evidence, frozen=True, kw_only=True, tag="sync-slowdown"):
    """Sync-bound: steps with gradient sync are longer than those of independent ranks."""

    slowdown_fraction: RelativeChange
    slowdown_low: RelativeChange  # 95% interval
    slowdown_high: RelativeChange
    synced_ms: Milliseconds
    independent_ms: Milliseconds
    wait_fraction: RelativeChange  # of a step of the run, spent waiting in gradient sync


class PhaseShares(Evidence, frozen=True, kw_only=True, tag="phase-shares"):
    """Compute-bound: no other bottleneck applies."""

    forward_ms: Milliseconds
    backward_ms: Milliseconds
    optimizer_ms: Milliseconds
    step_ms: Milliseconds
    unavoidable_wait_ms: Milliseconds | None = None  # for data; no change of the loader is known to save a tenth of a step


class OversubscribedRanks(Evidence, frozen=True, kw_only=True, tag="oversubscribed-ranks"):
    """Inconclusive: CPU ranks and workers need more cores than their node has, so their waits cannot be distinguished."""

    ranks: AtLeastOne  # of the node
    workers: Count  # per rank
    threads_per_rank: AtLeastOne
    usable_cores: Amount
    likely_kind: Bottleneck
    likely: CollectiveWaits | SyncSlowdown | PhaseShares


class DecodesOnDevice(Evidence, frozen=True, kw_only=True, tag="decodes-on-device"):
    """Inconclusive: the GPUs wait for batches that they decode, which slows down the training as well."""

    wait_fraction: Amount


class UnexplainedTime(Evidence, frozen=True, kw_only=True, tag="unexplained-time"):
    """Inconclusive: much of a step is in no phase."""

    unexplained_ms: Milliseconds
    step_ms: Milliseconds


class HiddenSync(Evidence, frozen=True, kw_only=True, tag="hidden-sync"):
    """Inconclusive: ranks replay CUDA graphs, which show waits for other ranks only in the last step of a round."""

    backward_ms: Milliseconds  # with gradient sync
    step_ms: Milliseconds


class ScriptTime(Evidence, frozen=True, kw_only=True, tag="script-time"):
    """Inconclusive: a watched script spends much of each step between the optimizer's step and the next request to the loader."""

    script_ms: Milliseconds
    step_ms: Milliseconds


RuleEvidence = (
    SlowRank
    | LoaderInBackground
    | CoresTakenByWorkers
    | StarvedRanks
    | CoresTakenByOthers
    | EpochStarts
    | DataWait
    | BatchPreparation
    | CopyWait
    | HostBatches
    | IdleGpu
    | ShortHostLead
    | UnequalBatches
    | CollectiveWaits
    | SyncSlowdown
    | PhaseShares
    | OversubscribedRanks
    | DecodesOnDevice
    | UnexplainedTime
    | HiddenSync
    | ScriptTime
)
"""Evidence of one rule on one set of rounds."""


class TooShort(Evidence, frozen=True, kw_only=True, tag="too-short"):
    """Inconclusive: too few rounds or steps for a verdict. ``likely`` is what they show."""

    rounds: Count
    steps: Count
    likely_kind: Bottleneck
    likely: RuleEvidence


class Undecided(Evidence, frozen=True, kw_only=True, tag="undecided"):
    """Inconclusive: resamples disagree. The two most frequent bottlenecks compete, the first more often."""

    first: Bottleneck  # "inconclusive" if no bottleneck applies
    first_fraction: Fraction  # of the resamples
    second: Bottleneck
    second_fraction: Fraction
    has_controls: bool  # control runs were measured, so that only more rounds can decide
    likely: RuleEvidence  # of ``first``


BottleneckEvidence = RuleEvidence | TooShort | Undecided
