"""Messages of every loss of a scaling job."""

from __future__ import annotations

from typing import get_args

import pytest
import records
import scaling_jobs
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
from ddpbench.record.roles import SkippedMeasurement, ddp_role
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
from ddpbench.report.messages.checks import baseline_doubts_text
from ddpbench.report.messages.scaling import LOSS_NAMES, explain_loss, losses_text

ONE_NODE, TWO_NODES = scaling_jobs.whole(), scaling_jobs.network()
LOST = {"exposed-comm": 0.104, "ddp": 0.02}
LOSSES = "exposed communication 10.4%, DDP 2.0%"
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
    (NearIdeal(loss_fraction=0.013, losses={}), ONE_NODE, "4 ranks reach 98.7% of ideal throughput", "no losses"),
    (
        UnreliableBaseline(ranks=4, efficiency=1.06, doubts=[NoisyBaseline(round_cv=0.04), UnknownDoubt()]),
        ONE_NODE,
        "efficiency 106.0% exceeds 102%: unreliable 1-rank baseline",
        "its rounds vary by 4.0%; cause unknown, measure again with more --rounds",
    ),
    (
        ALLREDUCE,
        TWO_NODES,
        "the network between node-01 and node-02 limits scaling: exposed communication costs 10% of ideal throughput",
        "102 MB per step in 5 buckets, 10 ms for the all-reduce alone; 75% of it overlaps backward; "
        "busbw 15,300 of 16,000 MB/s measured: saturated",
    ),
    (
        replace(ALLREDUCE, num_buckets=1, busbw=8e9, hidden_fraction=None),
        ONE_NODE,
        "the interconnect of the GPUs on this node limits scaling: exposed communication costs 10% of ideal throughput",
        "102 MB per step in 1 bucket, 10 ms for the all-reduce alone; busbw 8,000 of 16,000 MB/s measured: larger buckets may raise it",
    ),
    (
        replace(ALLREDUCE, busbw=17e9, hidden_fraction=None),
        ONE_NODE,
        "the interconnect of the GPUs on this node limits scaling: exposed communication costs 10% of ideal throughput",
        "102 MB per step in 5 buckets, 10 ms for the all-reduce alone; busbw 17,000 MB/s, above the 16,000 MB/s measured before",
    ),
    (
        SlowAllReduce(loss_fraction=0.104, losses=LOST),
        ONE_NODE,
        "the interconnect of the GPUs on this node limits scaling: exposed communication costs 10% of ideal throughput",
        LOSSES,
    ),
    (
        Contention(loss_fraction=0.11, lost_ms=5.0, has_noisy_neighbour=False),
        ONE_NODE,
        "ranks compete for host, power and bus: independent ranks lose 11% of ideal throughput",
        "a step without communication takes 5 ms longer on all ranks at once than on one",
    ),
    (
        Contention(loss_fraction=0.11, lost_ms=5.0, has_noisy_neighbour=True),
        ONE_NODE,
        "ranks compete for host, power and bus: independent ranks lose 11% of ideal throughput",
        "a step without communication takes 5 ms longer on all ranks at once than on one; other processes took cores too",
    ),
    (
        INPUT,
        ONE_NODE,
        "data loading costs 21% of ideal throughput",
        "12.3 ms of each step, compared to batches on the device",
    ),
    (
        StragglerLoss(loss_fraction=0.12, lost_ms=6.0, rank=3, slow_in="host-to-device", excess_fraction=0.18),
        ONE_NODE,
        "waiting for rank 3 (node-01) costs 12% of ideal throughput",
        "it is 18% slower than the others in every round: host-to-device copies; 6 ms of each step",
    ),
    (
        StragglerLoss(loss_fraction=0.12, lost_ms=6.0),
        ONE_NODE,
        "waiting for other ranks costs 12% of ideal throughput",
        "no rank is the slowest in every round; 6 ms of each step",
    ),
    (
        DdpLoss(loss_fraction=0.04, lost_ms=4.0, comm_cost_ms=5.5),
        ONE_NODE,
        "ranks compute more slowly in DDP than independently, which costs 4% of ideal throughput",
        "4 ms per step without sync, while all-reduce overlaps backward; other ranks cost 5.5 ms per step in total",
    ),
    (
        DdpLoss(loss_fraction=0.04, lost_ms=4.0),
        ONE_NODE,
        "ranks compute more slowly in DDP than independently, which costs 4% of ideal throughput",
        "4 ms per step without sync, while all-reduce overlaps backward",
    ),
    (
        SmallBatch(loss_fraction=0.3, lost_ms=3.4),
        ONE_NODE,
        "batch 256 per rank is too little work: the smaller batch costs 30% of ideal throughput",
        "a 1-rank step with that batch takes 3.4 ms more than its share of a step with the full batch",
    ),
    (UnexplainedLoss(loss_fraction=0.12, losses=LOST), ONE_NODE, "unknown causes cost 12% of ideal throughput", LOSSES),
    (TooFewRounds(rounds=1, losses=LOST), ONE_NODE, "1 round is too few to attribute losses", LOSSES),
    (TooFewRounds(rounds=2, losses={}), ONE_NODE, "2 rounds are too few to attribute losses", "no losses"),
    (
        UndecidedLoss(first="data-bound", first_fraction=0.6, second="link-bound", second_fraction=0.4, likely=INPUT),
        ONE_NODE,
        "data-bound (60% of resamples) or link-bound (40% of resamples)",
        "most likely data-bound: data loading costs 21% of ideal throughput; more rounds would decide",
    ),
]


@pytest.mark.parametrize(("evidence", "job", "claim", "reason"), EXPLAINED)
def test_scaling_loss_has_claim_and_reason(evidence: ScalingEvidence, job: Job, claim: str, reason: str) -> None:
    assert explain_loss(evidence, job) == (claim, reason)


def test_unmeasured_world_sizes_are_listed_with_the_reason() -> None:
    job = scaling_jobs.whole()
    assert job.scaling is not None
    job.scaling.skipped = [SkippedMeasurement(ddp_role(2), "failed", error="no time"), SkippedMeasurement(ddp_role(4), "no_time_left")]
    assert explain_loss(NotMeasured(world_sizes=[2, 4]), job) == (
        "no rounds with 2 ranks and 4 ranks: losses not measured",
        "no time left",
    )


def test_every_scaling_evidence_type_has_a_message() -> None:
    assert {type(evidence) for evidence, *_ in EXPLAINED} | {NotMeasured} == {*get_args(ScalingEvidence)}


DOUBTS: list[tuple[AnyBaselineDoubt, str]] = [
    (NoisyBaseline(round_cv=0.043), "its rounds vary by 4.3%"),
    (ShortBaseline(rounds=1), "it has 1 round, the minimum is 5"),
    (CheckedBaseline(check=Throttled(ranks=[0], reasons=["hw-thermal"])), "rank 0 (node-01): hw-thermal"),
    (LowerClock(sm_mhz=1500.2, all_sm_mhz=1980.0), "its GPU ran at 1500 MHz, but at 1980 with all ranks"),
    (SlowRankZero(excess_fraction=0.09), "it runs on rank 0, which is 9% slower than the others"),
    (SlowWholeBatch(excess_fraction=0.07, ranks=4), "its full batch is 7% slower per image than the per-rank batch of 4 ranks"),
    (UnknownDoubt(), "cause unknown, measure again with more --rounds"),
]


@pytest.mark.parametrize(("doubt", "text"), DOUBTS, ids=[type(doubt).__name__ for doubt, _ in DOUBTS])
def test_baseline_doubt_has_a_message(doubt: AnyBaselineDoubt, text: str) -> None:
    assert baseline_doubts_text([doubt], records.record([records.BUSY])) == text


def test_every_doubt_and_loss_has_a_message() -> None:
    assert {type(doubt) for doubt, _ in DOUBTS} == {*get_args(AnyBaselineDoubt)}
    assert LOSS_NAMES.keys() == {*get_args(LossName)}
    assert losses_text(["exposed-comm", "contention"]) == "exposed communication or contention"
