"""Messages of every bottleneck, and of verdicts on them."""

from __future__ import annotations

from typing import get_args

import pytest
import records
from msgspec.structs import replace

from ddpbench.record.bottleneck import (
    BatchPreparation,
    Bottleneck,
    BottleneckEvidence,
    CollectiveWaits,
    CopyWait,
    CoresTakenByOthers,
    CoresTakenByWorkers,
    DataWait,
    DecodesOnDevice,
    EpochStarts,
    HiddenSync,
    HostBatches,
    IdleGpu,
    LoaderInBackground,
    OversubscribedRanks,
    PhaseShares,
    ScriptTime,
    ShortHostLead,
    SlowRank,
    StarvedRanks,
    StragglerKind,
    SyncSlowdown,
    TooShort,
    Undecided,
    UnequalBatches,
    UnexplainedTime,
)
from ddpbench.record.record import Record
from ddpbench.record.root_cause import BusyCores
from ddpbench.record.verdict import ChangeDataLoader, NextStep, RaiseTimeLimit, ReduceRanks, RunCommand, TrySettings, Verdict
from ddpbench.report.messages.bottlenecks import (
    DECIDING_MEASUREMENTS,
    STRAGGLER_PHRASES,
    compute_share,
    explain_bottleneck,
)
from ddpbench.report.messages.verdict import (
    explain_verdict,
    next_step_text,
    repeatability_text,
    verdict_heading,
    verdict_label,
    verdict_sentence,
)

WAIT = DataWait(wait_fraction=0.78, loader_samples_per_s=1130.0, device_samples_per_s=6010.0)
COMPUTE = PhaseShares(forward_ms=20.0, backward_ms=38.0, optimizer_ms=2.0, step_ms=62.4)
BESIDE = LoaderInBackground(slowdown_fraction=0.31, compute_only_ms=44.4, with_loader_ms=58.2, data_wait_ms=0.1, step_ms=58.2)
OVERSUBSCRIBED = OversubscribedRanks(
    ranks=4,
    workers=16,
    threads_per_rank=1,
    usable_cores=16.0,
    likely_kind="sync-bound",
    likely=CollectiveWaits(wait_ms=30.0, step_ms=92.4),
)
UNDECIDED = Undecided(first="data-bound", first_fraction=0.6, second="inconclusive", second_fraction=0.4, has_controls=False, likely=WAIT)
GPU, CPU = records.record(), records.cpu_run()
GPU_DECODER = records.record(config=replace(records.RESNET50, loader="dali-gpu"))


def slow_rank(slow_in: StragglerKind) -> SlowRank:
    return SlowRank(rank=1, slow_in=slow_in, excess_fraction=0.48, own_ms=92.4, others_own_ms=62.4, cost_samples_per_s=5330.0)


EXPLAINED: list[tuple[BottleneckEvidence, Record, str, str]] = [
    (
        slow_rank("data"),
        GPU,
        "rank 1 (node-01, GPU 1) is 48% slower than the others: data wait",
        "own time (step minus sync) 92.4 ms, other ranks 62.4, in every round; costs 5,330 images/s",
    ),
    (
        replace(slow_rank("compute"), largest_over_mean=1.72),
        GPU,
        "rank 1 (node-01, GPU 1) is 48% slower than the others: slow compute",
        "own time (step minus sync) 92.4 ms, other ranks 62.4, in every round; costs 5,330 images/s; "
        "the largest batch of a step has 1.72 times the elements of an average one",
    ),
    (
        slow_rank("host-to-device"),
        CPU,
        "rank 1 (node-01) is 48% slower than the others: batch preparation",
        "own time (step minus sync) 92.4 ms, other ranks 62.4, in every round; costs 5,330 images/s",
    ),
    (
        BESIDE,
        GPU,
        "the data loader competes with training for cores: steps take 31% longer while it runs",
        "a compute-only step takes 44.4 ms, 58.2 with the loader in the background; data wait is 0.1 of 58.2 ms",
    ),
    (
        BESIDE,
        GPU_DECODER,
        "the data loader decodes on the training GPU: steps take 31% longer while it runs",
        "a compute-only step takes 44.4 ms, 58.2 with the loader in the background; data wait is 0.1 of 58.2 ms",
    ),
    (
        CoresTakenByWorkers(slowdown_fraction=0.6, rank_cores=0.62, needed_cores=1.0, worker_cores=0.7, usable_cores=2.0),
        CPU,
        "the data loader competes with training for cores: steps take 60% longer while it runs",
        "a computing rank gets 0.62 of 1 core; loader workers keep 0.7 of 2 busy",
    ),
    (
        StarvedRanks(cores_by_rank={0: 0.52, 1: 0.55}, job_cores=2, usable_cores=2.0),
        CPU,
        "other processes appear to take cores: 2 ranks got 0.52 to 0.55 of 1 core each",
        "the job needs 2 of 2 usable cores and hardly waits for data or other ranks",
    ),
    (
        StarvedRanks(cores_by_rank={1: 0.52}, job_cores=1, usable_cores=1.0),
        CPU,
        "other processes appear to take cores: rank 1 (node-01) got 0.52 of 1 core",
        "the job needs 1 of 1 usable core and hardly waits for data or other ranks",
    ),
    (
        CoresTakenByOthers(cores=64, other_cores=38.0, job_cores=25.6, other_cores_before=12.0),
        GPU,
        "other processes keep 38 of the job's 64 usable cores busy",
        "the job got 25.6 cores and none was idle; 12 were busy before the job started; on a virtual machine, its host counts as "
        "another process",
    ),
    (
        WAIT,
        GPU,
        "the GPUs wait for data 78% of the time",
        "the loader delivers 1,130 images/s per GPU; the GPU could train 6,010",
    ),
    (
        BatchPreparation(prepare_ms=25.0, step_ms=87.5),
        CPU,
        "the ranks spend 29% of each step on batch preparation",
        "the trainer process prepares each batch for 25 of 87.5 ms and does not train meanwhile",
    ),
    (
        CopyWait(copy_ms=20.0, step_ms=82.4, pageable_bytes_per_s=3.2e9, pinned_bytes_per_s=24.1e9),
        GPU,
        "the GPUs wait for host-to-device copies 24% of the time",
        "copies stall the GPU for 20 of 82.4 ms; bandwidth 3.2 GB/s from pageable memory, 24.1 from pinned",
    ),
    (
        HostBatches(slowdown_fraction=0.25, extra_ms=15.6, step_ms=78.0),
        GPU,
        "steps on batches in host memory take 25% longer than on batches on the GPU",
        "15.6 of 78 ms are copies and host work, with any loader",
    ),
    (
        IdleGpu(kernel_ms=40.0, available_ms=62.4),
        GPU,
        "the host launches kernels more slowly than the GPU runs them",
        "kernels run for 40 of the 62.4 ms that are not data or sync waits",
    ),
    (
        ShortHostLead(host_lead_ms=0.4, step_ms=62.4),
        GPU,
        "the host launches kernels more slowly than the GPU runs them",
        "the host runs only 0.4 ms ahead of the GPU in a step of 62.4 ms",
    ),
    (
        CollectiveWaits(wait_ms=30.0, step_ms=92.4),
        GPU,
        "the GPUs wait for gradient sync 32% of the time",
        "30 of 92.4 ms, gradients of 25.6 million parameters on 4 ranks",
    ),
    (
        SyncSlowdown(slowdown_fraction=0.26, slowdown_low=0.15, slowdown_high=0.39, synced_ms=78.6, independent_ms=62.4, wait_fraction=0.2),
        GPU,
        "gradient sync makes each step 26% longer (15% to 39%)",
        "78.6 ms with sync, 62.4 with independent ranks; timers show 20% of the baseline waiting for it, gradients of 25.6 million "
        "parameters on 4 ranks",
    ),
    (COMPUTE, GPU, "compute takes 96% of each step", "forward 20, backward 38, optimizer 2 of 62.4 ms"),
    (
        OVERSUBSCRIBED,
        CPU,
        "too few cores: 4 ranks x 16 workers + 4 > 16 usable cores",
        "threads share cores and wait for each other; most likely sync-bound: the ranks wait for gradient sync 32% of the time",
    ),
    (
        replace(OVERSUBSCRIBED, workers=0, threads_per_rank=3, likely_kind="compute-bound", likely=COMPUTE),
        CPU,
        "too few cores: 4 ranks x 3 threads > 16 usable cores",
        "threads share cores and wait for each other; most likely compute-bound: compute takes 96% of each step",
    ),
    (
        DecodesOnDevice(wait_fraction=0.19),
        GPU_DECODER,
        "the GPUs wait for batches decoded on the GPU 19% of the time",
        "a run cannot distinguish a slow loader from one that takes GPU time from training",
    ),
    (
        HiddenSync(backward_ms=58.0, step_ms=82.4),
        GPU,
        "CUDA graphs show only in the last step of a round how long ranks wait for each other",
        "backward and gradient sync take 58 of 82.4 ms, with waits",
    ),
    (
        UnexplainedTime(unexplained_ms=20.0, step_ms=82.4),
        GPU,
        "24% of each step is not explained by its phases",
        "20 of 82.4 ms of wall time belong to no phase",
    ),
    (
        EpochStarts(fraction=0.7, start_s=0.91, epoch_s=1.3, workers=2),
        GPU,
        "the GPUs wait for the start of epochs 70% of the time",
        "at every epoch of 1.3 s, the workers end, start again, and load their first batch for 0.91 s; 2 per rank",
    ),
    (
        EpochStarts(fraction=0.4, start_s=0.1, epoch_s=0.25, workers=8, keeps_workers=True),
        GPU,
        "the GPUs wait for the start of epochs 40% of the time",
        "at every epoch of 0.25 s, the persistent workers load their first batch for 0.1 s; 8 per rank",
    ),
    (
        EpochStarts(fraction=0.25, workers=1),
        CPU,
        "the ranks wait for the start of epochs 25% of the time",
        "at every epoch, the workers end, start again, and load their first batch; 1 per rank",
    ),
    (
        UnequalBatches(wait_ms=12.0, step_ms=40.0, largest_over_mean=1.42),
        GPU,
        "the GPUs wait for larger batches of other ranks 30% of the time",
        "the largest batch of a step has 1.42 times the elements of an average one; others wait 12 of 40 ms for its rank, "
        "besides communication",
    ),
    (
        ScriptTime(script_ms=30.0, step_ms=82.4),
        GPU,
        "the script spends 36% of each step between its update and the next batch",
        "30 of 82.4 ms: logging, metrics, schedules, weight averages",
    ),
    (
        ScriptTime(script_ms=30.0, step_ms=82.4),
        records.script_without_loader(),
        "the script spends 36% of each step between its update and the next forward",
        "30 of 82.4 ms: waits for data, logging, metrics, schedules",
    ),
    (
        TooShort(rounds=1, steps=20, likely_kind="data-bound", likely=WAIT),
        GPU,
        "1 round and 20 steps are too few for a verdict",
        "most likely data-bound: the GPUs wait for data 78% of the time",
    ),
    (
        TooShort(rounds=2, steps=1, likely_kind="inconclusive", likely=UnexplainedTime(unexplained_ms=20.0, step_ms=82.4)),
        GPU,
        "2 rounds and 1 step are too few for a verdict",
        "24% of each step is not explained by its phases",
    ),
    (
        UNDECIDED,
        GPU,
        "data-bound (60% of resamples) or none of them (40% of resamples)",
        "most likely data-bound: the GPUs wait for data 78% of the time; compute-only training would decide",
    ),
    (
        replace(UNDECIDED, has_controls=True),
        GPU,
        "data-bound (60% of resamples) or none of them (40% of resamples)",
        "most likely data-bound: the GPUs wait for data 78% of the time; more rounds would decide",
    ),
]


@pytest.mark.parametrize(("evidence", "record", "claim", "reason"), EXPLAINED)
def test_bottleneck_has_claim_and_reason(evidence: BottleneckEvidence, record: Record, claim: str, reason: str) -> None:
    assert explain_bottleneck(evidence, record) == (claim, reason)


def test_every_evidence_type_has_a_message() -> None:
    assert {type(evidence) for evidence, *_ in EXPLAINED} == {*get_args(BottleneckEvidence)}


def test_every_straggler_kind_has_a_phrase() -> None:
    assert STRAGGLER_PHRASES == {
        "data": "data wait",
        "host-to-device": "host-to-device copies",
        "compute": "slow compute",
        "clock": "lower GPU clock",
        "host": "slow host",
    }


def test_every_bottleneck_names_the_measurement_that_decides() -> None:
    assert DECIDING_MEASUREMENTS.keys() == {*get_args(Bottleneck)} - {"compute-bound", "inconclusive"}
    two = replace(UNDECIDED, first="straggler", second="sync-bound")
    assert explain_bottleneck(two, GPU).reason.endswith("; the control runs of a diagnosis or training without gradient sync would decide")
    same = replace(UNDECIDED, first="loader-contends-cpu", second="loader-contends-gpu")
    assert explain_bottleneck(same, GPU).reason.endswith("; training with the loader in the background would decide")


def test_single_gpu_is_described_in_the_singular() -> None:
    assert compute_share(COMPUTE) == "compute takes 96% of each step"
    claim = explain_bottleneck(DecodesOnDevice(wait_fraction=0.19), records.record([records.BUSY])).claim
    assert claim == "the GPU waits for batches decoded on the GPU 19% of the time"


def test_cause_follows_the_bottleneck_evidence() -> None:
    verdict = Verdict(kind="data-bound", evidence=WAIT, cause="too-few-cores", cause_evidence=BusyCores(usable_cores=16.0, job_cores=14.6))
    found = explain_verdict(verdict, GPU)
    assert found.reason == (
        "the loader delivers 1,130 images/s per GPU; the GPU could train 6,010; all 16 usable cores are busy, 14.6 with this job"
    )
    assert verdict_sentence(verdict, found) == f"data-bound: the GPUs wait for data 78% of the time; {found.reason}"


def test_probable_verdict_states_its_share_and_runner_up() -> None:
    sure = Verdict(kind="data-bound", evidence=WAIT, cause="too-few-cores", repeatability=1.0, cause_repeatability=0.99)
    assert (verdict_label(sure), verdict_heading(sure), repeatability_text(sure)) == ("data-bound", "DATA-BOUND, TOO FEW CORES", "")
    cause = replace(sure, cause_repeatability=0.83, cause_runner_up="handoff")
    assert verdict_heading(cause) == "DATA-BOUND, PROBABLY TOO FEW CORES"
    assert repeatability_text(cause) == "83% of bootstrap resamples name this cause; the runner-up is handoff"
    both = replace(cause, repeatability=0.81, runner_up="sync-bound")
    assert (verdict_label(both), verdict_heading(both)) == ("probably data-bound", "PROBABLY DATA-BOUND, PROBABLY TOO FEW CORES")
    assert repeatability_text(both) == (
        "81% of bootstrap resamples agree; the runner-up is sync-bound; 83% of these name this cause; the runner-up is handoff"
    )
    neither = replace(sure, repeatability=0.81, runner_up="inconclusive")
    share = "81% of bootstrap resamples agree; the runner-up is inconclusive"
    assert repeatability_text(neither) == share
    assert verdict_sentence(neither, explain_verdict(neither, GPU)).endswith(f" ({share})")


def test_straggler_heading_has_no_separate_cause() -> None:
    assert verdict_heading(Verdict(kind="straggler", evidence=slow_rank("data"), cause="one-rank")) == "STRAGGLER"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (RunCommand("ddpbench resnet50"), "ddpbench resnet50"),
        (RaiseTimeLimit(), "a longer --time-limit"),
        (TrySettings(cures=["channels-last", "fused-optimizer"]), "ddpbench diagnose, which tries channels-last, fused-optimizer"),
        (ReduceRanks(2), "at most 2 ranks per node"),
        (ChangeDataLoader(num_workers=4), "DataLoader(..., num_workers=4)"),
        (ChangeDataLoader(pin_memory=True), "DataLoader(..., pin_memory=True)"),
        (
            ChangeDataLoader(num_workers=8, prefetch_factor=4, persistent_workers=True),
            "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True)",
        ),
    ],
)
def test_next_step_has_a_message(step: NextStep, text: str) -> None:
    assert next_step_text(step) == text
