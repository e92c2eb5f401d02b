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
    CpuQuota,
    DominantStage,
    EnoughWorkers,
    HandoffOrWorkers,
    HeadOfLine,
    HeadOfLineOrWorkers,
    IdleWorkers,
    OversubscribedWorkers,
    ReadAndDecodeWait,
    ReadWait,
    ReadWaitOrCores,
    SharedBusyCores,
    SlowHandoff,
    StorageRate,
    TooFewCores,
    TooFewWorkers,
    UndecidedCause,
    WorkerLimit,
)
from ddpbench.report.messages.causes import cause_name, cause_text

CORES = TooFewCores(ranks=4, usable_cores=16.0, trainer_cores=4, core_samples_per_s=329.0, cores_needed=53.5)
WORKERS = TooFewWorkers(workers=2, samples_per_s=430.0, more_workers=15, more_samples_per_s=3260.0, limited_by="cores", usable_cores=64.0)
STAGE = DominantStage(stage="decode", cpu_fraction=0.88, usable_cores=16.0, samples_per_s=165.0, samples_per_s_without=1520.0)
BLOCKED = BlockedWorkers(sample_ms=41.0, blocked_ms=38.5)

WORDED: list[tuple[CauseEvidence, str]] = [
    (
        CpuQuota(usable_cores=16.0, cores=64, throttled_fraction=0.39),
        "a quota of 16 of 64 cores kept 39% of the core time from the job that it asked for",
    ),
    (
        SlowHandoff(handoff_fraction=0.9),
        "90% of the wait for a batch is after its worker has made it: the trainer process takes batches over too slowly",
    ),
    (
        SlowHandoff(handoff_fraction=0.9, worker_busy_fraction=0.2),
        "90% of the wait for a batch is after its worker has made it, and the workers are busy for 20% of their time: the trainer process "
        "takes batches over too slowly",
    ),
    (
        HandoffOrWorkers(handoff_fraction=0.45),
        "45% of the wait for a batch is after its worker has made it: taking it over, or making it, which cannot be told apart",
    ),
    (
        HeadOfLine(blocked_fraction=0.7, worker_samples_per_s=1820.0),
        "for 70% of the wait a later batch was ready, and not the one whose turn it was; on the mean the workers make 1,820 images/s",
    ),
    (
        HeadOfLineOrWorkers(blocked_fraction=0.45, workers=4),
        "for 45% of the wait a later batch was ready, and not the one whose turn it was; 4 workers would be just enough, so "
        "these two cannot be told apart",
    ),
    (ReadWait(sample_ms=34.6, read_wait_ms=30.0), "of the 34.6 ms that a worker takes for an image it waits 30 for its file"),
    (
        ReadWaitOrCores(sample_ms=34.6, read_wait_ms=30.0),
        "of the 34.6 ms that a worker takes for an image it waits 30 for its file, and all cores are busy: storage and cores "
        "cannot be told apart",
    ),
    (StorageRate(samples_per_s=812.0), "its files can be read at 812 images/s a GPU"),
    (
        ReadAndDecodeWait(sample_ms=41.0, blocked_ms=38.5),
        "of the 41 ms that a worker takes for an image it waits 38.5, and for no core: for its file, which it reads and decodes in one",
    ),
    (
        BLOCKED,
        "of the 41 ms that a worker takes for an image it waits 38.5, and for no core: whether more workers would help cannot be told",
    ),
    (
        replace(BLOCKED, single_rank_speedup=2.04),
        "of the 41 ms that a worker takes for an image it waits 38.5, and for no core; one rank alone gets 2.0 times as many: "
        "they share what they wait for",
    ),
    (IdleWorkers(busy_fraction=0.55), "the workers make batches for 55% of their time, and yet the GPU waits: for what cannot be told"),
    (OversubscribedWorkers(workers=64, usable_cores=16.0), "64 workers take turns on 16 cores"),
    (
        OversubscribedWorkers(workers=64, usable_cores=16.0, core_samples_per_s=900.0),
        "64 workers take turns on 16 cores; they could load 900 images/s a GPU at the most",
    ),
    (STAGE, "decode takes 88% of the core time that an image costs: 16 cores give 165 images/s a GPU, without it 1,520"),
    (
        replace(STAGE, usable_cores=1.0, samples_per_s_without=None),
        "decode takes 88% of the core time that an image costs: 1 core gives 165 images/s a GPU, and nothing else costs any",
    ),
    (BusyCores(usable_cores=16.0, job_cores=14.6), "all 16 usable cores are busy, 14.6 with the job itself"),
    (
        SharedBusyCores(usable_cores=64.0, job_cores=25.6, other_cores=38.0),
        "all 64 usable cores are busy, 25.6 with the job itself and 38 with others: which of the two is too much cannot be told",
    ),
    (
        CORES,
        "no number of workers can feed 4 GPUs from 16 cores: they give 329 images/s a GPU; keeping up takes 53.5 cores a GPU",
    ),
    (
        replace(CORES, ranks=1, core_samples_per_s=None),
        "no number of workers can feed this GPU from 16 cores: training alone takes 4; keeping up takes 53.5 cores a GPU",
    ),
    (
        replace(CORES, handoff_samples_per_s=4800.0),
        "no number of workers can feed 4 GPUs from 16 cores: they give 329 images/s a GPU; with 53.5 cores one trainer process hands over "
        "4,800 images/s",
    ),
    (WORKERS, "2 workers a GPU give 430 images/s; 15 would give 3,260, and no more can be had from 64 cores"),
    (
        replace(WORKERS, workers=1, limited_by="device"),
        "1 worker a GPU gives 430 images/s; 15 would keep up, and there are cores for them",
    ),
    (
        replace(WORKERS, limited_by="handoff"),
        "2 workers a GPU give 430 images/s; 15 would give 3,260, and no more is handed over by one trainer process",
    ),
    (
        replace(WORKERS, limited_by="memory"),
        "2 workers a GPU give 430 images/s; 15 would give 3,260; more than 16 per core fill the memory",
    ),
    (
        BusyCoresUnexplained(usable_cores=16.0),
        "all 16 usable cores are busy, and loading needs not so many: by what cannot be told",
    ),
    (
        EnoughWorkers(workers=15, samples_per_s=5900.0),
        "15 workers a GPU give 5,900 images/s, which on the mean is enough: for what the GPU waits cannot be told",
    ),
    (
        UndecidedCause(first="too-few-cores", first_fraction=0.55, second=None, second_fraction=0.3),
        "the cause is open: too few cores in 55%, unknown in 30% of resamples",
    ),
]


@pytest.mark.parametrize(("evidence", "text"), WORDED)
def test_cause_has_a_message(evidence: CauseEvidence, text: str) -> None:
    assert cause_text(evidence, records.record()) == text


def test_every_cause_evidence_type_has_a_message() -> None:
    assert {type(evidence) for evidence, _ in WORDED} == {*get_args(CauseEvidence)}
    limits = {evidence.limited_by for evidence, _ in WORDED if isinstance(evidence, TooFewWorkers)}
    assert limits == {*get_args(WorkerLimit)}


def test_message_uses_ranks_and_sample_unit_of_the_record() -> None:
    record = records.cpu_run(sample_unit="row")
    assert cause_text(StorageRate(samples_per_s=812.0), record) == "its files can be read at 812 rows/s a rank"
    assert cause_text(replace(CORES, ranks=2), record).startswith(
        "no number of workers can feed 2 ranks from 16 cores: they give 329 rows/s"
    )


def test_cause_names() -> None:
    assert (cause_name("head-of-line"), cause_name(None)) == ("head of line", "unknown")
