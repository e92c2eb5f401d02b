"""Messages of every root cause."""

from __future__ import annotations

from typing import get_args

import pytest
import records
from msgspec.structs import replace

from ddpbench.record.root_cause import (
    BlockedWorkers,
    BusyCores,
    BusyCoresUnexplained,
    CauseEvidence,
    ComparedWorkers,
    CpuQuota,
    DominantStage,
    EnoughWorkers,
    HandoffOrWorkers,
    HeadOfLine,
    HeadOfLineOrWorkers,
    IdleWorkers,
    OneByOne,
    OversubscribedWorkers,
    ReadAndDecodeWait,
    ReadWait,
    ReadWaitOrCores,
    SharedBusyCores,
    SlowHandoff,
    SlowSampler,
    StorageRate,
    TimeOutsideSamples,
    TooFewCores,
    TooFewWorkers,
    TriedWorkers,
    UndecidedCause,
    WorkerLimit,
)
from ddpbench.record.script import SampleComparison, WatchedScript
from ddpbench.report.messages.causes import cause_name, cause_text

CORES = TooFewCores(ranks=4, usable_cores=16.0, trainer_cores=4, core_samples_per_s=329.0, cores_needed=53.5)
WORKERS = TooFewWorkers(workers=2, samples_per_s=430.0, more_workers=15, more_samples_per_s=3260.0, limited_by="cores", usable_cores=64.0)
STAGE = DominantStage(stage="decode", cpu_fraction=0.88, usable_cores=16.0, samples_per_s=165.0, samples_per_s_without=1520.0)
BLOCKED = BlockedWorkers(sample_ms=41.0, blocked_ms=38.5)

WORDED: list[tuple[CauseEvidence, str]] = [
    (
        CpuQuota(usable_cores=16.0, cores=64, throttled_fraction=0.39),
        "a CPU quota of 16 of 64 cores withholds 39% of the CPU time that the job needs",
    ),
    (
        OneByOne(samples_per_s=1500.0, resident_samples_per_s=60_000.0),
        "the data fit into memory, but are fetched one by one and collated: 1,500 images/s, whole batches 60,000 images/s",
    ),
    (
        SlowSampler(sampler_fraction=0.8, batch_ms=6.54),
        "the sampler draws the indices of a batch in 6.54 ms in the trainer process, 80% of the data wait: workers do not help",
    ),
    (
        SlowHandoff(handoff_fraction=0.9),
        "90% of the data wait passes after the worker has finished the batch: the main process cannot take batches fast enough",
    ),
    (
        SlowHandoff(handoff_fraction=0.9, worker_busy_fraction=0.2),
        "90% of the data wait passes after the worker has finished the batch, with workers 20% busy: the main process "
        "cannot take batches fast enough",
    ),
    (
        HandoffOrWorkers(handoff_fraction=0.45),
        "45% of the data wait passes after the worker has finished the batch: handoff or worker speed, indistinguishable here",
    ),
    (
        HeadOfLine(blocked_fraction=0.7, worker_samples_per_s=1820.0),
        "for 70% of the data wait a later batch was ready, but not the next one; workers average 1,820 images/s",
    ),
    (
        HeadOfLineOrWorkers(blocked_fraction=0.45, workers=4),
        "for 45% of the data wait a later batch was ready, but not the next one; 4 workers would be just enough: "
        "head-of-line blocking or too few workers, indistinguishable here",
    ),
    (ReadWait(sample_ms=34.6, read_wait_ms=30.0), "a worker waits 30 of 34.6 ms per image for its file"),
    (
        ReadWaitOrCores(sample_ms=34.6, read_wait_ms=30.0),
        "a worker waits 30 of 34.6 ms per image for its file; all cores are busy: storage or cores, indistinguishable here",
    ),
    (StorageRate(samples_per_s=812.0), "storage delivers 812 images/s per GPU"),
    (
        ReadAndDecodeWait(sample_ms=41.0, blocked_ms=38.5),
        "a worker waits 38.5 of 41 ms per image, but not for a core: it waits for its file, which is read and decoded in one call",
    ),
    (
        BLOCKED,
        "a worker waits 38.5 of 41 ms per image, but not for a core: more workers help unless they share what it waits for",
    ),
    (
        replace(BLOCKED, single_rank_speedup=2.04),
        "a worker waits 38.5 of 41 ms per image, but not for a core; a single rank loads 2.0 times as fast: "
        "ranks wait for a shared resource",
    ),
    (
        TriedWorkers(sample_ms=41.0, blocked_ms=38.5, workers=2, more_workers=9, gain=3.91),
        "a worker waits 38.5 of 41 ms per image, but not for a core; 9 workers instead of 2 trained 3.91 times as fast",
    ),
    (
        TriedWorkers(sample_ms=41.0, blocked_ms=38.5, workers=2, more_workers=9, gain=3.91, is_loader_only=True),
        "a worker waits 38.5 of 41 ms per image, but not for a core; 9 workers instead of 2 loaded 3.91 times as fast, without training",
    ),
    (
        TimeOutsideSamples(wait_ms=0.299, sample_ms=0.011),
        "dataset and collate function take 0.011 of the 0.299 ms that the GPU waits per image: the rest passes elsewhere in the loader, "
        "such as in its sampler",
    ),
    (
        ComparedWorkers(workers=0, samples_per_s=27_900.0, more_workers=1, gain=0.832),
        "0 workers per GPU deliver 27,900 images/s, but 1 worker instead of 0 trained 0.832 times as fast: cause unknown",
    ),
    (IdleWorkers(busy_fraction=0.55), "workers are busy 55% of the time, yet the GPU waits: cause unknown"),
    (OversubscribedWorkers(workers=64, usable_cores=16.0), "64 workers share 16 cores"),
    (
        OversubscribedWorkers(workers=64, usable_cores=16.0, core_samples_per_s=900.0),
        "64 workers share 16 cores; the cores can load at most 900 images/s per GPU",
    ),
    (STAGE, "decode takes 88% of the CPU time per image: 16 cores load 165 images/s per GPU, 1,520 without it"),
    (
        replace(STAGE, usable_cores=1.0, samples_per_s_without=None),
        "decode takes 88% of the CPU time per image: 1 core loads 165 images/s per GPU, and no other stage uses CPU time",
    ),
    (BusyCores(usable_cores=16.0, job_cores=14.6), "all 16 usable cores are busy, 14.6 with this job"),
    (
        SharedBusyCores(usable_cores=64.0, job_cores=25.6, other_cores=38.0),
        "all 64 usable cores are busy, 25.6 with this job and 38 with other processes: either may be the cause",
    ),
    (
        CORES,
        "16 cores cannot feed 4 GPUs with any number of workers: at most 329 images/s per GPU; keeping up needs 53.5 cores per GPU",
    ),
    (
        replace(CORES, ranks=1, core_samples_per_s=None),
        "16 cores cannot feed this GPU with any number of workers: training alone uses 4; keeping up needs 53.5 cores per GPU",
    ),
    (
        replace(CORES, handoff_samples_per_s=4800.0),
        "16 cores cannot feed 4 GPUs with any number of workers: at most 329 images/s per GPU; 53.5 cores would deliver 4,800 "
        "images/s, the most a trainer process receives",
    ),
    (
        replace(CORES, samples_per_s_per_core=109.6),
        "16 cores cannot feed 4 GPUs with any number of workers: at most 329 images/s per GPU; keeping up needs 53.5 cores per GPU; "
        "one more core per GPU adds 110 images/s",
    ),
    (WORKERS, "15 workers instead of 2 would deliver 3,260, the limit of 64 cores"),
    (
        replace(WORKERS, samples_per_s_per_core=109.6),
        "15 workers instead of 2 would deliver 3,260, the limit of 64 cores; one more core per GPU adds 110 images/s",
    ),
    (
        replace(WORKERS, workers=1, limited_by="device"),
        "15 workers instead of 1 would keep up on these cores",
    ),
    (
        replace(WORKERS, limited_by="handoff"),
        "15 workers instead of 2 would deliver 3,260, the most a trainer process receives",
    ),
    (
        replace(WORKERS, limited_by="memory"),
        "15 workers instead of 2 would deliver 3,260; more than 16 per core would exhaust memory",
    ),
    (
        BusyCoresUnexplained(usable_cores=16.0),
        "all 16 usable cores are busy, more than loading needs: cause unknown",
    ),
    (
        EnoughWorkers(workers=15, samples_per_s=5900.0),
        "15 workers per GPU deliver 5,900 images/s, enough on average: why the GPU waits is unknown",
    ),
    (
        UndecidedCause(first="too-few-cores", first_fraction=0.55, second=None, second_fraction=0.3),
        "cause undecided: too few cores in 55%, unknown in 30% of resamples",
    ),
]


@pytest.mark.parametrize(("evidence", "text"), WORDED)
def test_cause_has_a_message(evidence: CauseEvidence, text: str) -> None:
    assert cause_text(evidence, records.record()) == text


def test_more_workers_are_no_promise_where_they_may_read_other_samples() -> None:
    compared = SampleComparison(workers=2, samples=300, not_compared="shuffled", is_stream=True)
    text = cause_text(WORKERS, records.record(script=WatchedScript(sample_comparison=compared)))
    assert text.startswith("15 workers instead of 2 would deliver 3,260")
    assert text.endswith(", if they read the same samples as now")


def test_every_cause_evidence_type_has_a_message() -> None:
    assert {type(evidence) for evidence, _ in WORDED} == {*get_args(CauseEvidence)}
    limits = {evidence.limited_by for evidence, _ in WORDED if isinstance(evidence, TooFewWorkers)}
    assert limits == {*get_args(WorkerLimit)}


def test_message_uses_ranks_and_sample_unit_of_the_record() -> None:
    record = records.cpu_run(sample_unit="row")
    assert cause_text(StorageRate(samples_per_s=812.0), record) == "storage delivers 812 rows/s per rank"
    assert cause_text(replace(CORES, ranks=2), record).startswith(
        "16 cores cannot feed 2 ranks with any number of workers: at most 329 rows/s"
    )


def test_cause_names() -> None:
    assert (cause_name("head-of-line"), cause_name(None)) == ("head of line", "unknown")
