"""Losses of a scaling job, and the evidence that shows each."""

from __future__ import annotations

from typing import Literal

from ddpbench.record.bottleneck import Evidence, StragglerKind
from ddpbench.record.checks import AnyBaselineDoubt
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Fraction, Milliseconds, RelativeChange

ScalingVerdictKind = Literal[
    "unreliable-baseline",  # efficiency exceeds 100%: the 1-rank baseline was too slow
    "scales",  # almost nothing is lost
    "network-bound",  # the network between the nodes is too slow for the gradients
    "link-bound",  # the links between the devices of one node are too slow for the gradients
    "contention-bound",  # ranks on one machine compete for resources even without communication
    "data-bound",  # the ranks wait for data
    "straggler",  # ranks wait for a slow rank
    "ddp-bound",  # ranks compute more slowly while they all-reduce gradients
    "batch-bound",  # the batch per rank is too small for its device
    "unexplained",  # most of the loss is unexplained
    "inconclusive",  # two losses compete, or there are too few rounds
]
"""Every verdict on a scaling job."""

LossName = Literal[
    "smaller-batch",  # with a fixed global batch, a rank's share takes longer per image than the whole batch on one rank
    "contention",  # independent ranks, all at once, compute more slowly than one rank on the idle machine
    "data",  # waiting for data, copying it, and for ranks whose data is late; computing more slowly with the loader in the background
    "exposed-comm",  # exposed communication, all-reduce and broadcast of buffers, on the rank that waits least
    "straggler",  # waits for late ranks, other than for late data: one straggler, or another rank in every round
    "ddp",  # a rank's own time in DDP over that without it, beyond the same on one rank: all-reduce runs during backward
    "residual",  # the rest, so that all terms sum to measured minus ideal
    "slower-ranks",  # ranks that compute more slowly, for a scaling point that has no waterfall
]
"""The losses of the waterfall in its order, then that of a scaling point without one."""

Losses = dict[LossName, RelativeChange]
"""Loss -> fraction of the ideal, largest first; without losses of 0.1% or less."""


class UnreliableBaseline(Evidence, frozen=True, kw_only=True, tag="unreliable-baseline"):
    """The efficiency is implausibly high."""

    ranks: AtLeastOne
    efficiency: Amount
    doubts: list[AnyBaselineDoubt]


class NearIdeal(Evidence, frozen=True, kw_only=True, tag="near-ideal"):
    """Scales: almost nothing is lost."""

    loss_fraction: RelativeChange  # of the ideal
    losses: Losses


class SlowAllReduce(Evidence, frozen=True, kw_only=True, tag="slow-allreduce"):
    """Network- or link-bound: exposed communication is the largest loss. Sizes and times are per step, None if not measured."""

    loss_fraction: RelativeChange
    losses: Losses
    num_buckets: Count | None = None
    total_bytes: Count | None = None
    allreduce_only_ms: Milliseconds | None = None
    busbw: Amount | None = None  # bytes/s
    max_busbw: Amount | None = None  # the highest measured without training, bytes/s
    hidden_fraction: Fraction | None = None  # of ``allreduce_only_ms``


class Contention(Evidence, frozen=True, kw_only=True, tag="contention"):
    """Contention-bound: independent ranks are slower together than one alone."""

    loss_fraction: RelativeChange
    lost_ms: Difference
    has_noisy_neighbour: bool  # a check of some arm found other processes on its cores: they may be the contention


class InputLoss(Evidence, frozen=True, kw_only=True, tag="input-loss"):
    """Data-bound: training on real batches is slower than on batches on the device."""

    loss_fraction: RelativeChange
    lost_ms: Difference


class StragglerLoss(Evidence, frozen=True, kw_only=True, tag="straggler-loss"):
    """Straggler: ranks wait for a slow one; for a different one in each round if ``rank`` is None."""

    loss_fraction: RelativeChange
    lost_ms: Difference
    rank: Count | None = None
    slow_in: StragglerKind | None = None
    excess_fraction: RelativeChange | None = None  # of its own time, over the others'


class DdpLoss(Evidence, frozen=True, kw_only=True, tag="ddp-loss"):
    """DDP-bound: ranks compute more slowly while they all-reduce."""

    loss_fraction: RelativeChange
    lost_ms: Difference
    comm_cost_ms: Milliseconds | None = None  # all that other ranks cost a step; None if unknown or none


class SmallBatch(Evidence, frozen=True, kw_only=True, tag="small-batch"):
    """Batch-bound: the share of the global batch is too little work for a rank."""

    loss_fraction: RelativeChange
    lost_ms: Difference


class UnexplainedLoss(Evidence, frozen=True, kw_only=True, tag="unexplained-loss"):
    """Unexplained: the residual is the largest term."""

    loss_fraction: RelativeChange
    losses: Losses


LossEvidence = (
    NearIdeal | UnreliableBaseline | SlowAllReduce | Contention | InputLoss | StragglerLoss | DdpLoss | SmallBatch | UnexplainedLoss
)
"""Evidence of one set of rounds."""


class TooFewRounds(Evidence, frozen=True, kw_only=True, tag="too-few-rounds"):
    """Inconclusive: some arm has too few rounds."""

    rounds: Count
    losses: Losses


class NotMeasured(Evidence, frozen=True, kw_only=True, tag="not-measured"):
    """Inconclusive: time ran out before some world sizes had a round."""

    world_sizes: list[AtLeastOne]


class UndecidedLoss(Evidence, frozen=True, kw_only=True, tag="undecided-loss"):
    """Inconclusive: resamples disagree. The two most frequent verdicts compete, the first more often."""

    first: ScalingVerdictKind
    first_fraction: Fraction  # of the resamples
    second: ScalingVerdictKind
    second_fraction: Fraction
    likely: LossEvidence  # of ``first``


ScalingEvidence = LossEvidence | TooFewRounds | NotMeasured | UndecidedLoss
