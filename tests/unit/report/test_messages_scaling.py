"""Messages of every loss of a scaling job."""

from __future__ import annotations

from typing import get_args

import ladders
import pytest
import records
from msgspec.structs import replace

from ddpbench.record.checks import (
    CheckedBaseline,
    LowerClock,
    NoisyBaseline,
    ShortBaseline,
    SlowRankZero,
    SlowWholeBatch,
    Throttled,
    UnknownDoubt,
)
from ddpbench.record.record import Job
from ddpbench.record.roles import ddp_role
from ddpbench.record.scaling_loss import (
    AnyBaselineDoubt,
    Contention,
    DdpLoss,
    InputLoss,
    LossName,
    NearIdeal,
    NotMeasured,
    ScalingEvidence,
    SlowAllReduce,
    SmallBatch,
    StragglerLoss,
    TooFewRounds,
    UndecidedLoss,
    UnexplainedLoss,
    UnreliableBaseline,
)
from ddpbench.record.skipped import SkippedMeasurement
from ddpbench.report.messages.checks import baseline_doubts_text
from ddpbench.report.messages.scaling import LOSS_NAMES, explain_loss, losses_text

ONE_NODE, TWO_NODES = ladders.whole(), ladders.network()
LOST = {"exposed-allreduce": 0.104, "ddp": 0.02}
LOSSES = "all-reduce not hidden 10.4%, DDP 2.0%"
ALLREDUCE = SlowAllReduce(
    loss_fraction=0.104,
    losses=LOST,
    num_buckets=5,
    total_bytes=102_000_000,
    allreduce_only_ms=10.0,
    busbw=15.3e9,
    max_busbw=16e9,
    hidden_fraction=0.75,
)
INPUT = InputLoss(loss_fraction=0.21, lost_ms=12.3)

EXPLAINED: list[tuple[ScalingEvidence, Job, str, str]] = [
    (NearIdeal(loss_fraction=0.013, losses={}), ONE_NODE, "4 ranks keep 98.7% of 4 times one", "nothing is lost"),
    (
        UnreliableBaseline(ranks=4, efficiency=1.06, doubts=[NoisyBaseline(round_cv=0.04), UnknownDoubt()]),
        ONE_NODE,
        "106.0% of 4 times one rank cannot be (above 102%): the one rank was slow",
        "its rounds vary by 4.0%; nothing that was measured tells why: measure again, with more --rounds",
    ),
    (
        ALLREDUCE,
        TWO_NODES,
        "the network between node-01 and node-02 is the limit: 10% of the ideal is lost to gradients on their way",
        "a step sends 102 MB in 5 buckets, which takes 10 ms alone; that is 15,300 of 16,000 MB/s measured on it: all that it gives; "
        "backward hides 75%",
    ),
    (
        replace(ALLREDUCE, num_buckets=1, busbw=8e9, hidden_fraction=None),
        ONE_NODE,
        "what connects the GPUs of this node is the limit: 10% of the ideal is lost to gradients on their way",
        "a step sends 102 MB in 1 bucket, which takes 10 ms alone; that is 8,000 of 16,000 MB/s measured on it: larger buckets "
        "may get more of it",
    ),
    (
        replace(ALLREDUCE, busbw=17e9, hidden_fraction=None),
        ONE_NODE,
        "what connects the GPUs of this node is the limit: 10% of the ideal is lost to gradients on their way",
        "a step sends 102 MB in 5 buckets, which takes 10 ms alone; that is 17,000 MB/s, above the 16,000 MB/s measured on it before",
    ),
    (
        SlowAllReduce(loss_fraction=0.104, losses=LOST),
        ONE_NODE,
        "what connects the GPUs of this node is the limit: 10% of the ideal is lost to gradients on their way",
        LOSSES,
    ),
    (
        Contention(loss_fraction=0.11, lost_ms=5.0, has_noisy_neighbour=False),
        ONE_NODE,
        "ranks take host, power and bus from each other: 11% of the ideal is lost with every rank for itself",
        "a step without any communication takes 5 ms more on all ranks at once than on one alone",
    ),
    (
        Contention(loss_fraction=0.11, lost_ms=5.0, has_noisy_neighbour=True),
        ONE_NODE,
        "ranks take host, power and bus from each other: 11% of the ideal is lost with every rank for itself",
        "a step without any communication takes 5 ms more on all ranks at once than on one alone; but other people's processes took cores "
        "meanwhile",
    ),
    (
        INPUT,
        ONE_NODE,
        "the ranks wait for data: 21% of the ideal is lost to it",
        "12.3 ms of every step, which batches on the device do not cost",
    ),
    (
        StragglerLoss(loss_fraction=0.12, lost_ms=6.0, rank=3, slow_in="host-to-device", excess_fraction=0.18),
        ONE_NODE,
        "12% of the ideal is lost to waiting for rank 3 (node-01)",
        "18% more own time than the others, host to device, in every round; 6 ms of every step",
    ),
    (
        StragglerLoss(loss_fraction=0.12, lost_ms=6.0),
        ONE_NODE,
        "12% of the ideal is lost to waiting for now one rank, now another",
        "no rank is the slowest in every round; 6 ms of every step",
    ),
    (
        DdpLoss(loss_fraction=0.04, lost_ms=4.0, comm_cost_ms=5.5),
        ONE_NODE,
        "ranks compute more slowly in DDP than for themselves: 4% of the ideal",
        "4 ms a step of their own time, in which the all-reduce works beside the backward; all that other ranks cost a step is 5.5 ms",
    ),
    (
        DdpLoss(loss_fraction=0.04, lost_ms=4.0),
        ONE_NODE,
        "ranks compute more slowly in DDP than for themselves: 4% of the ideal",
        "4 ms a step of their own time, in which the all-reduce works beside the backward",
    ),
    (
        SmallBatch(loss_fraction=0.3, lost_ms=3.4),
        ONE_NODE,
        "256 a rank is too little work: 30% of the ideal is lost to the smaller batch",
        "a step of one rank with that share takes 3.4 ms more than its part of the whole batch",
    ),
    (UnexplainedLoss(loss_fraction=0.12, losses=LOST), ONE_NODE, "12% of the ideal is lost without a name", LOSSES),
    (TooFewRounds(rounds=1, losses=LOST), ONE_NODE, "1 round is too few to tell what is lost", LOSSES),
    (TooFewRounds(rounds=2, losses={}), ONE_NODE, "2 rounds are too few to tell what is lost", "nothing is lost"),
    (
        UndecidedLoss(first="data-bound", first_fraction=0.6, second="link-bound", second_fraction=0.4, likely=INPUT),
        ONE_NODE,
        "data-bound (60% of resamples) or link-bound (40% of resamples)",
        "most like data-bound: the ranks wait for data: 21% of the ideal is lost to it; more rounds would decide",
    ),
]


@pytest.mark.parametrize(("evidence", "job", "claim", "reason"), EXPLAINED)
def test_scaling_loss_has_claim_and_reason(evidence: ScalingEvidence, job: Job, claim: str, reason: str) -> None:
    assert explain_loss(evidence, job) == (claim, reason)


def test_unmeasured_world_sizes_are_listed_with_the_reason() -> None:
    job = ladders.whole()
    assert job.scaling is not None
    job.scaling.skipped = [SkippedMeasurement(ddp_role(2), "failed", error="no time"), SkippedMeasurement(ddp_role(4), "no_time_left")]
    assert explain_loss(NotMeasured(world_sizes=[2, 4]), job) == (
        "2 ranks and 4 ranks had no round: what is lost on the way was not measured",
        "no time was left for it",
    )


def test_every_scaling_evidence_type_has_a_message() -> None:
    assert {type(evidence) for evidence, *_ in EXPLAINED} | {NotMeasured} == {*get_args(ScalingEvidence)}


DOUBTS: list[tuple[AnyBaselineDoubt, str]] = [
    (NoisyBaseline(round_cv=0.043), "its rounds vary by 4.3%"),
    (ShortBaseline(rounds=1), "it has 1 round, and a figure needs 5"),
    (CheckedBaseline(check=Throttled(ranks=[0], reasons=["hw-thermal"])), "rank 0 (node-01): hw-thermal"),
    (LowerClock(sm_mhz=1500.2, all_sm_mhz=1980.0), "its GPU ran at 1500 MHz, all of them at 1980"),
    (SlowRankZero(excess_fraction=0.09), "rank 0, on which it trains, is 9% slower than the others by itself"),
    (SlowWholeBatch(excess_fraction=0.07, ranks=4), "its whole batch runs 7% slower an image than the share that a rank of 4 has"),
    (UnknownDoubt(), "nothing that was measured tells why: measure again, with more --rounds"),
]


@pytest.mark.parametrize(("doubt", "text"), DOUBTS, ids=[type(doubt).__name__ for doubt, _ in DOUBTS])
def test_baseline_doubt_has_a_message(doubt: AnyBaselineDoubt, text: str) -> None:
    assert baseline_doubts_text([doubt], records.record([records.BUSY])) == text


def test_every_doubt_and_loss_has_a_message() -> None:
    assert {type(doubt) for doubt, _ in DOUBTS} == {*get_args(AnyBaselineDoubt)}
    assert LOSS_NAMES.keys() == {*get_args(LossName)}
    assert losses_text(["exposed-allreduce", "contention"]) == "all-reduce not hidden or contention"
