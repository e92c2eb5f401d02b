"""Trust checks: what each check found about a record, as a code and numbers. ``report.messages.checks`` words them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.private import HostName
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, NonZero, RelativeChange
from ddpbench.record.script import SharedHandle
from ddpbench.record.trace import RetryReason

Severity = Literal["error", "warning", "info"]
"""Most severe first. An error leaves the throughput out and makes the record invalid; ``--strict`` fails on a warning, too."""


Ranks = Annotated[list[Count], Meta(min_length=1)]
Rounds = Annotated[list[Count], Meta(min_length=1)]
"""Indices of rounds, counted from 0."""


class Check(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """One trust check that found something. Its code is the tag of the subclass."""

    severity: Severity
    launches: list[AtLeastOne] = []  # of several merged launches, those that have it, counted from 1; empty if all have

    @property
    def code(self) -> str:
        return code_of(type(self))


def code_of(check: type[Check]) -> str:
    """The code under which a check is stored and printed: ``noisy``."""
    return str(check.__struct_config__.tag)


class PrecisionMismatch(Check, frozen=True, kw_only=True, tag="precision-mismatch"):
    """The observed precision is not the requested one. Fields hold what was observed; those that match are empty or None."""

    severity: Severity = "error"
    layer_dtypes: list[str] = []  # compute dtypes
    batch_norm_dtypes: list[str] = []
    parameter_dtypes: list[str] = []
    gradient_dtypes: list[str] = []
    master_weights: bool | None = None
    loss_scaler: bool | None = None
    loss_scales: list[Amount] = []
    requested_loss_scale: Amount | None = None  # set with ``loss_scales``
    tf32_matmul: bool | None = None  # set with ``tf32_cudnn``
    tf32_cudnn: bool | None = None


class UnusedLossScale(Check, frozen=True, kw_only=True, tag="unused-loss-scale"):
    """A static loss scale was requested for a precision that does not scale the loss."""

    severity: Severity = "info"
    loss_scale: Amount


class NonfiniteLoss(Check, frozen=True, kw_only=True, tag="nonfinite-loss"):
    """The loss was infinite or NaN."""

    severity: Severity = "error"
    step: Count  # timed steps of all rounds, counted from 0
    rank: Count
    computes_in_float16: bool  # whose range may have been exceeded


class SkippedSteps(Check, frozen=True, kw_only=True, tag="skipped-steps"):
    """The loss scaler skipped updates: an error if the run hardly trains."""

    skipped: AtLeastOne
    steps: AtLeastOne  # timed steps of all rounds
    in_a_row: bool  # two or more


class FrozenParameters(Check, frozen=True, kw_only=True, tag="frozen-parameters"):
    """No parameter changed in a round."""

    severity: Severity = "error"
    round_index: Count
    rank: Count


class ParamsOutOfSync(Check, frozen=True, kw_only=True, tag="params-out-of-sync"):
    """Ranks ended a round with different parameters."""

    severity: Severity = "error"
    round_index: Count  # the first


class Noisy(Check, frozen=True, kw_only=True, tag="noisy"):
    """The throughput of the rounds varies."""

    severity: Severity = "warning"
    round_cv: Amount  # coefficient of variation, a fraction
    suggested_rounds: Count | None = None  # None if the command decides the number of rounds, or has enough


class Drift(Check, frozen=True, kw_only=True, tag="drift"):
    """The last rounds are slower or faster than the first."""

    severity: Severity = "warning"
    change: Difference  # of the throughput of the last two rounds from that of the first two, a fraction


class Relocated(Check, frozen=True, kw_only=True, tag="relocated"):
    """The run was resumed on other GPUs or hosts."""

    severity: Severity = "warning"
    round_indices: Rounds  # the first round after each relocation


class MeasurementTooShort(Check, frozen=True, kw_only=True, tag="too-short"):
    """There are too few rounds or steps: a warning, or a note if ddpbench chose as many as the time allowed."""

    rounds: AtLeastOne
    steps: AtLeastOne  # of all rounds
    limited_by: Literal["time-limit", "one-minute", "steps", "script"] | None = None  # None if flags or an early end left too few
    remedy: Literal["longer-time-limit", "run-to-end"] | None = None
    suggested_rounds: Count | None = None  # None if --rounds has enough
    suggested_steps: Count | None = None  # None if --steps has enough


class Throttled(Check, frozen=True, kw_only=True, tag="throttled"):
    """GPUs were throttled, other than by a software power cap."""

    severity: Severity = "warning"
    ranks: Ranks
    reasons: list[str]  # named as in machine.gpu.THROTTLE_REASONS


class PowerCapped(Check, frozen=True, kw_only=True, tag="power-cap"):
    """A software power cap lowered the clocks of GPUs."""

    severity: Severity = "info"
    ranks: Ranks


class Remeasured(Check, frozen=True, kw_only=True, tag="remeasured"):
    """Rounds were measured a second time."""

    severity: Severity = "info"
    round_indices: Rounds
    reasons: list[RetryReason]


class SharedGpu(Check, frozen=True, kw_only=True, tag="shared-gpu"):
    """Processes outside the job use GPUs of the job."""

    severity: Severity = "warning"
    ranks: Ranks
    other_processes: AtLeastOne  # maximum over ranks


class AllocRetry(Check, frozen=True, kw_only=True, tag="alloc-retry"):
    """The allocator had to free its cache and retry."""

    severity: Severity = "warning"
    retries: AtLeastOne  # of all ranks


class ImplausibleMfu(Check, frozen=True, kw_only=True, tag="implausible"):
    """The model FLOPs utilization exceeds 100% of the measured peak."""

    severity: Severity = "warning"
    mfu: Amount  # a fraction


class BaselineDoubt(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """A reason to doubt the 1-rank baseline."""


class NoisyBaseline(BaselineDoubt, frozen=True, kw_only=True, tag="noisy-baseline"):
    round_cv: Amount  # coefficient of variation of its rounds, a fraction


class ShortBaseline(BaselineDoubt, frozen=True, kw_only=True, tag="short-baseline"):
    rounds: Count


class CheckedBaseline(BaselineDoubt, frozen=True, kw_only=True, tag="checked-baseline"):
    """A check of the 1-rank run found something."""

    check: Drift | Throttled | SharedGpu | NoisyNeighbour


class LowerClock(BaselineDoubt, frozen=True, kw_only=True, tag="lower-clock"):
    """The GPU of the 1-rank run ran at a lower clock than the mean of all ranks."""

    sm_mhz: Amount
    all_sm_mhz: Amount


class SlowRankZero(BaselineDoubt, frozen=True, kw_only=True, tag="slow-rank-0"):
    """Rank 0, which runs the baseline, is slower than the other independent ranks."""

    excess_fraction: RelativeChange


class SlowWholeBatch(BaselineDoubt, frozen=True, kw_only=True, tag="slow-whole-batch"):
    """With strong scaling, one rank takes longer per image for the whole batch than for the share of one of ``ranks``."""

    excess_fraction: RelativeChange
    ranks: AtLeastOne


class UnknownDoubt(BaselineDoubt, frozen=True, kw_only=True, tag="unknown"):
    """The efficiency is implausible, and nothing that was measured explains it."""


AnyBaselineDoubt = NoisyBaseline | ShortBaseline | CheckedBaseline | LowerClock | SlowRankZero | SlowWholeBatch | UnknownDoubt


class ImplausibleEfficiency(Check, frozen=True, kw_only=True, tag="implausible-efficiency"):
    """A scaling point is implausibly efficient: the 1-rank baseline was slow."""

    severity: Severity = "warning"
    efficiency: Amount  # a fraction
    baseline_doubts: list[AnyBaselineDoubt]


class OversubscribedCpu(Check, frozen=True, kw_only=True, tag="oversubscribed-cpu"):
    """Loader workers and trainers need more cores than the node has."""

    severity: Severity = "warning"
    host: HostName  # where cores are scarcest
    ranks: AtLeastOne  # on it
    workers: Count  # per rank
    threads_per_rank: Count  # of its trainer process
    usable_cores: NonZero
    suggested_workers: Count | None = None  # per rank; None if fewer workers are no remedy


class NoisyNeighbour(Check, frozen=True, kw_only=True, tag="noisy-neighbour"):
    """Processes outside the job took cores from CPU ranks while they computed."""

    severity: Severity = "warning"
    cores_by_rank: Annotated[dict[Count, Amount], Meta(min_length=1)]  # cores that each starved rank got


class NoInfiniband(Check, frozen=True, kw_only=True, tag="no-infiniband"):
    """NCCL uses sockets between nodes that have InfiniBand."""

    severity: Severity = "warning"
    disabled_by: list[str]  # environment variables that keep NCCL from it


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes with the least and the most of something."""

    least: Amount
    least_host: HostName
    most: Amount
    most_host: HostName


class UnequalNodes(Check, frozen=True, kw_only=True, tag="unequal-nodes"):
    """Nodes have different numbers of ranks or of usable cores; None for that of which all have the same number."""

    severity: Severity = "info"
    ranks: Imbalance | None = None
    usable_cores: Imbalance | None = None


class RereadFiles(Check, frozen=True, kw_only=True, tag="reread-files"):
    """The timed rounds read files more than once, from the page cache."""

    severity: Severity = "info"


class FilesSkipped(Check, frozen=True, kw_only=True, tag="skipped-files"):
    """Unreadable files were skipped."""

    severity: Severity = "info"
    files: AtLeastOne  # different ones


class SharedHandles(Check, frozen=True, kw_only=True, tag="shared-handles"):
    """The workers of a script share what its dataset had open when they were forked."""

    severity: Severity = "warning"
    workers: AtLeastOne
    handles: Annotated[list[SharedHandle], Meta(min_length=1)]


class RepeatedSamples(Check, frozen=True, kw_only=True, tag="repeated-samples"):
    """The workers of a script yield each other's samples: its stream is not divided among them."""

    severity: Severity = "warning"
    workers: AtLeastOne


class NotValidated(Check, frozen=True, kw_only=True, tag="not-validated"):
    """Accuracy was requested, and there are no held-out data."""

    severity: Severity = "info"


AnyCheck = (
    PrecisionMismatch
    | UnusedLossScale
    | NonfiniteLoss
    | SkippedSteps
    | FrozenParameters
    | ParamsOutOfSync
    | Noisy
    | Drift
    | Relocated
    | MeasurementTooShort
    | Throttled
    | PowerCapped
    | Remeasured
    | SharedGpu
    | AllocRetry
    | ImplausibleMfu
    | ImplausibleEfficiency
    | OversubscribedCpu
    | NoisyNeighbour
    | NoInfiniband
    | UnequalNodes
    | RereadFiles
    | FilesSkipped
    | SharedHandles
    | RepeatedSamples
    | NotValidated
)
"""Every check."""
