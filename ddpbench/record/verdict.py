"""Verdicts: the bottleneck of a run, or the main loss of a scaling job."""

from __future__ import annotations

import msgspec

from ddpbench.record.bottleneck import Bottleneck, BottleneckEvidence
from ddpbench.record.private import ShellCommand
from ddpbench.record.ranges import AtLeastOne, Count, Fraction
from ddpbench.record.root_cause import Cause, CauseEvidence
from ddpbench.record.scaling_loss import ScalingEvidence, ScalingVerdictKind
from ddpbench.record.screening import CureCode
from ddpbench.record.script import SharedHandle

CONFIDENT_FRACTION, PROBABLE_FRACTION = 0.99, 0.70
"""Minimum fraction of resamples to report a bottleneck as certain, and as probable. Below both it is inconclusive."""


class RunCommand(msgspec.Struct, frozen=True, tag_field="code", tag="run"):
    """Run a command."""

    command: ShellCommand  # shell, to copy


class RaiseTimeLimit(msgspec.Struct, frozen=True, tag_field="code", tag="raise-time-limit"):
    """Measure again with a longer --time-limit."""


class TrySettings(msgspec.Struct, frozen=True, kw_only=True, tag_field="code", tag="try-settings"):
    """Diagnose a user's own script, which tries what may compute faster."""

    cures: list[CureCode]


class ReduceRanks(msgspec.Struct, frozen=True, tag_field="code", tag="reduce-ranks"):
    """Launch fewer ranks per node, which takes another launcher command."""

    max_ranks_per_node: AtLeastOne


class ChangeDataLoader(msgspec.Struct, frozen=True, kw_only=True, tag_field="code", tag="change-data-loader"):
    """Change arguments of the DataLoader of a user's own script. None means unchanged."""

    num_workers: Count | None = None
    prefetch_factor: AtLeastOne | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    in_order: bool | None = None
    resident: bool | None = None  # ``ddpbench.loaders.resident`` takes its place
    decode_on_gpu: bool | None = None  # ``ddpbench.loaders.decode_on_gpu`` takes its place
    ready_indices: bool | None = None  # its sampler draws the indices of an epoch at once
    shared_handles: list[SharedHandle] = []  # that each worker must open for itself first
    divide_samples: bool = False  # among the workers of a stream, first


class ChangeTraining(msgspec.Struct, frozen=True, kw_only=True, tag_field="code", tag="change-training"):
    """Compute in a user's own script with other settings."""

    cures: list[CureCode]  # in their order
    optimizers: list[str] = []  # names of the classes
    device_type: str = "cpu"


NextStep = RunCommand | RaiseTimeLimit | TrySettings | ReduceRanks | ChangeDataLoader | ChangeTraining


class RepeatedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of verdict have in common: how often resampled rounds repeat it, and what to do next."""

    kind: Bottleneck | ScalingVerdictKind
    rank: Count | None = None  # the slow rank, if one rank is the bottleneck
    next: NextStep | None = None
    repeatability: Fraction | None = None  # fraction of resamples that name this bottleneck; None if nothing was resampled
    runner_up: Bottleneck | ScalingVerdictKind | None = None  # what the other resamples name most often; "inconclusive" if no bottleneck

    @property
    def is_probable(self) -> bool:
        """Whether a bottleneck is named that too few resamples repeat to report it as certain."""
        return self.kind != "inconclusive" and self.repeatability is not None and self.repeatability < CONFIDENT_FRACTION


class Verdict(RepeatedVerdict, frozen=True, kw_only=True):
    """The bottleneck of a run."""

    kind: Bottleneck
    evidence: BottleneckEvidence
    cause: Cause | None = None  # None if unknown, or if the bottleneck has no causes
    cause_evidence: CauseEvidence | None = None  # what shows the cause, or leaves it open; None if ``evidence`` shows it, or nothing does
    cause_repeatability: Fraction | None = None  # of the resamples of this bottleneck, the fraction that names this cause
    runner_up: Bottleneck | None = None
    cause_runner_up: Cause | None = None  # the second most frequent cause among resamples of the same bottleneck

    @property
    def is_cause_probable(self) -> bool:
        return self.cause is not None and self.cause_repeatability is not None and self.cause_repeatability < CONFIDENT_FRACTION


class ScalingVerdict(RepeatedVerdict, frozen=True, kw_only=True):
    """The main loss of a scaling job."""

    kind: ScalingVerdictKind
    evidence: ScalingEvidence
    runner_up: ScalingVerdictKind | None = None
