"""Messages of remedies: names, reasons and prediction outcomes."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import records
from diagnoses import IMAGENET, TORCH
from msgspec.structs import replace

from ddpbench.analysis.command import is_runnable
from ddpbench.analysis.remedies.outcomes import in_terms_of
from ddpbench.record.loaders import LOADERS
from ddpbench.record.prediction import MissingMeasurement, Prediction, Scenario
from ddpbench.record.record import Record
from ddpbench.record.remedy import (
    DataInMemory,
    DecodeOnDevice,
    DecodeOnGpu,
    FewerRanks,
    FewerWorkers,
    LargerBatch,
    MeasuredGain,
    MoreCores,
    MoreWorkers,
    PersistentWorkers,
    Remedy,
    RemedyCode,
    Worth,
)
from ddpbench.record.screening import CureCode
from ddpbench.report.messages import remedies

GPUS = records.record(config=replace(TORCH, workers=3))
RANKS = records.cpu_run()
FIXED_WORKERS = records.record(
    config=replace(TORCH, loader="my_data:train", workers=8), data=replace(IMAGENET, loader="my_data:train", workers=2)
)
SCRIPT = records.watched_script()
TWO_NODES = records.record(environment=records.environment(4, nodes=2))

WORDS: list[tuple[Remedy, Record, str, str]] = [
    (
        MoreWorkers(workers=6, workers_needed=9, max_useful_workers=6, is_handoff_bound=False),
        GPUS,
        "6 workers",
        "9 would keep up; the cores can keep 6 busy",
    ),
    (
        MoreWorkers(workers=6, workers_needed=9, max_useful_workers=6, is_handoff_bound=True),
        FIXED_WORKERS,
        "6 workers",
        "9 would keep up with the trainer process; the cores can keep 6 busy; my_data:train ignores --workers and starts 2",
    ),
    (
        FewerWorkers(workers=1, workers_per_node=12, usable_cores=6.5),
        GPUS,
        "1 worker",
        "12 workers share 6.5 cores; context switches cost time",
    ),
    (
        Remedy(code="no-workers", scenario=Scenario(workers=0)),
        RANKS,
        "--workers 0",
        "loading in the trainer process avoids contention with workers",
    ),
    (
        MoreCores(cores=53.5, workers=61, is_handoff_bound=False),
        GPUS,
        "53.5 cores and 61 workers per GPU",
        "loads as fast as the GPU trains",
    ),
    (
        MoreCores(cores=4.0, workers=3, is_handoff_bound=True),
        GPUS,
        "4 cores per GPU",
        "loads as fast as one trainer process receives batches",
    ),
    (
        DecodeOnDevice(low=900.0, high=1200.0, decoding_rate=4000.0, gain=1.5),
        GPUS,
        'decode_jpeg(..., device="cuda")',
        "expected 900 to 1,200 images/s per GPU; the dataset would return the files' bytes; "
        "the GPU alone decodes and resizes 4,000 of them per second",
    ),
    (
        DecodeOnGpu(scenario=Scenario(decode_on_gpu=True), mean_difference=0.513, max_difference=12.0),
        GPUS,
        "--decode-on-gpu",
        "changes pixels: by 0.51 of 255 on average, by 12 at most; validation keeps its own decoder",
    ),
    (
        Remedy(code="pinned-memory-and-worker"),
        GPUS,
        "num_workers=1, pin_memory=True",
        "not predicted; without workers, the trainer process would pin each batch itself and wait for it",
    ),
    (
        Remedy(code="out-of-order", scenario=Scenario(in_order=False)),
        GPUS,
        "--no-in-order",
        "a late batch holds up no other; the order of the batches is no longer reproducible",
    ),
    (
        Remedy(code="more-prefetch", scenario=Scenario(prefetch=8)),
        GPUS,
        "--prefetch 8",
        "prefetched batches hide a slow one",
    ),
    (
        PersistentWorkers(max_gain=1.286, epoch_s=8.0, first_batch_s=1.8),
        GPUS,
        "persistent_workers=True",
        "at most 1.29x: your DataLoader restarts its workers every epoch of 8 s; the first batch takes 1.8 s, in part even with "
        "persistent workers",
    ),
    (
        Remedy(code="dataloader-with-workers"),
        GPUS,
        "DataLoader with num_workers > 0",
        "the trainer process loads each batch itself and prefetches none while it trains",
    ),
    (
        Remedy(code="other-loader", scenario=Scenario(loader="tensor")),
        GPUS,
        "--loader tensor",
        "the whole dataset is on the device, cropped and flipped per batch",
    ),
    (
        Remedy(code="other-loader", scenario=Scenario(loader="torch-uint8")),
        GPUS,
        "--loader torch-uint8",
        "decodes with libjpeg-turbo and stays in uint8: less CPU time per image, a quarter of the bytes to copy",
    ),
    (
        Remedy(code="other-loader", scenario=Scenario(loader="dali-cpu")),
        GPUS,
        "--loader dali-cpu",
        "threads instead of worker processes, no collate",
    ),
    (
        Remedy(code="other-loader", scenario=Scenario(loader="dali-gpu")),
        GPUS,
        "--loader dali-gpu",
        "decodes on the GPU: needs few cores, but takes GPU time",
    ),
    (
        Remedy(code="other-loader", scenario=Scenario(loader="replay")),
        GPUS,
        "--loader replay",
        LOADERS["replay"].help,
    ),
    (
        Remedy(code="more-hw-decoding", scenario=Scenario(hw_decoder_load=0.99)),
        GPUS,
        "--hw-decoder-load 0.99",
        "the GPU's JPEG unit decodes nearly all images and frees the SMs for training",
    ),
    (DataInMemory(), GPUS, "data in memory", "no waiting for file reads"),
    (
        DataInMemory(dataset_bytes=141e9, shm_free_bytes=200e9),
        GPUS,
        "data in memory",
        "dataset of 141 GB, but only 200 GB free in /dev/shm",
    ),
    (DataInMemory(dataset_bytes=141e9, shm_free_bytes=600e9, fits=True), GPUS, "data in memory", "dataset of 141 GB fits in /dev/shm"),
    (
        DataInMemory(dataset_bytes=141e9, shm_free_bytes=600e9, fits=True),
        TWO_NODES,
        "data in memory",
        "dataset of 141 GB fits in /dev/shm, one copy per node",
    ),
    (
        Remedy(code="pinned-memory", scenario=Scenario(pin_memory=True)),
        GPUS,
        "--pin-memory",
        "copies from pinned memory overlap training",
    ),
    (
        Remedy(code="resident-data", scenario=Scenario(resident=True)),
        SCRIPT,
        "ddpbench.loaders.resident(loader)",
        "data stay in the memory of the device, where a batch is read at once, without workers",
    ),
    (
        Remedy(code="ready-indices", scenario=Scenario(ready_indices=True)),
        SCRIPT,
        "a sampler that draws the indices of an epoch at once",
        "the trainer process draws the indices of every batch while it waits for it, and workers take nothing of that over",
    ),
    (
        Remedy(code="all-cores-workers", scenario=Scenario(workers=8)),
        SCRIPT,
        "DataLoader(..., num_workers=8, persistent_workers=True)",
        "as many workers as cores and memory allow: what to try first where no gain can be predicted",
    ),
    (Remedy(code="without-loader"), GPUS, "no loader", "upper limit: no batch is loaded or copied"),
    (
        Remedy(code="cuda-graphs", scenario=Scenario(compile="reduce-overhead")),
        GPUS,
        "--compile reduce-overhead",
        "CUDA graphs launch all kernels of a step at once",
    ),
    (Remedy(code="fast"), GPUS, "--fast", "fused kernels move fewer bytes, and CUDA graphs launch all kernels of a step at once"),
    (LargerBatch(batch_size=512), GPUS, "--batch-size 512", "more work per launched kernel"),
    (
        PersistentWorkers(max_gain=3.3, epoch_s=1.3, first_batch_s=0.91, scenario=Scenario(persistent_workers=True)),
        SCRIPT,
        "DataLoader(..., persistent_workers=True)",
        "workers start again for every epoch of 1.3 s, which takes 0.91 s of it",
    ),
    (
        PersistentWorkers(max_gain=3.3, epoch_s=1.3, first_batch_s=0.91, is_rebuilt=True),
        SCRIPT,
        "one DataLoader for all epochs, with persistent_workers=True",
        "the script creates its loader again for every epoch of 1.3 s, which takes 0.91 s of it",
    ),
    (
        Remedy(code="even-batches"),
        SCRIPT,
        "batches of like sizes on all ranks",
        "not predicted; for example a sampler that sorts samples by length into the batches of one step",
    ),
    (Remedy(code="less-sync"), GPUS, "cheaper gradient sync", ""),
    (Remedy(code="faster-compute"), GPUS, "faster compute, not faster data loading", ""),
    (Remedy(code="other-setting", scenario=Scenario(workers=4, prefetch=8)), GPUS, "--workers 4 --prefetch 8", ""),
    (Remedy(code="inspect-straggler"), GPUS, "inspect the straggler", ""),
    (Remedy(code="list-processes"), GPUS, "list other processes", ""),
    (Remedy(code="more-evidence"), GPUS, "more evidence", ""),
    (FewerRanks(max_ranks_per_node=4), GPUS, "at most 4 ranks per node", ""),
]


@pytest.mark.parametrize(("remedy", "record", "name", "reason"), WORDS, ids=[each[0].code for each in WORDS])
def test_remedy_has_name_and_reason(remedy: Remedy, record: Record, name: str, reason: str) -> None:
    judged = in_terms_of(remedy, record)
    assert (remedies.remedy_name(judged, record), remedies.remedy_reason(judged, record)) == (name, reason)


def test_every_remedy_has_a_message() -> None:
    assert {remedy.code for remedy, *_ in WORDS} == {*get_args(RemedyCode)} - {*get_args(CureCode)}, (
        "those of screened cures are on lines of their own"
    )


PREDICTED = Prediction(scenario=Scenario(workers=4), gain=2.2, low=2.0, high=2.5)
NOT_PREDICTED = Prediction(
    scenario=Scenario(loader="tensor"), missing_measurement=MissingMeasurement(code="loader-benchmark", loader="tensor")
)


def measured(center: float, low: float, high: float, pairs: int = 5) -> MeasuredGain:
    return MeasuredGain(center=center, low=low, high=high, pairs=pairs, has_interval=pairs >= 3)


def tried(prediction: Prediction, gain: MeasuredGain | None = None, **fields: Any) -> Remedy:
    scenario = prediction.scenario
    known = {"gain": prediction.gain, "prediction": prediction, "measured": gain, "can_be_tried": is_runnable(scenario)}
    return Remedy(code="other-setting", scenario=scenario, **known, **fields)


@pytest.mark.parametrize(
    ("remedy", "predicted", "measured", "details"),
    [
        (tried(NOT_PREDICTED), "", "not tried", "not measured: throughput and CPU cost of tensor"),
        (tried(NOT_PREDICTED, measured(2.0, 1.9, 2.1)), "", "2.0x (1.9 to 2.1)", "tried without a prediction"),
        (tried(PREDICTED), "2.2x (2.0 to 2.5)", "not tried", ""),
        (tried(replace(PREDICTED, scenario=Scenario(cores_per_gpu=8))), "2.2x (2.0 to 2.5)", "cannot be tried here", ""),
        (tried(PREDICTED, failure="out of memory"), "2.2x (2.0 to 2.5)", "failed: out of memory", ""),
        (tried(PREDICTED, measured(2.0, 2.0, 2.0, 1)), "2.2x (2.0 to 2.5)", "2.0x, too few rounds for an interval", None),
        (tried(PREDICTED, measured(2.0, 1.5, 2.6)), "2.2x (2.0 to 2.5)", "1.5x to 2.6x, a gain, too wide to compare", ""),
        (
            tried(PREDICTED, measured(2.0, 1.9, 2.1), missing_batches=3),
            "2.2x (2.0 to 2.5)",
            "2.0x (1.9 to 2.1), as predicted",
            "prediction 10% too high; 3 batches missing",
        ),
        (
            tried(PREDICTED, measured(1.0, 0.9, 1.1)),
            "2.2x (2.0 to 2.5)",
            "1.0x (0.9 to 1.1), less than predicted, no gain",
            "prediction 120% too high",
        ),
        (
            tried(PREDICTED, measured(0.8, 0.7, 0.9)),
            "2.2x (2.0 to 2.5)",
            "0.80x (0.70 to 0.90), less than predicted, a loss",
            "prediction 175% too high",
        ),
        (
            tried(PREDICTED, measured(3.0, 2.8, 3.2)),
            "2.2x (2.0 to 2.5)",
            "3.0x (2.8 to 3.2), more than predicted",
            "prediction 27% too low",
        ),
        (
            tried(replace(PREDICTED, after_trial=True), measured(2.0, 1.9, 2.1)),
            "",
            "2.0x (1.9 to 2.1)",
            "predicted after the trial: 2.2x (2.0 to 2.5)",
        ),
    ],
)
def test_remedy_has_gains_and_details(remedy: Remedy, predicted: str, measured: str, details: str | None) -> None:
    assert remedies.predicted_gain_text(remedy) == predicted
    assert remedies.measured_gain_text(remedy) == measured
    assert details is None or remedies.remedy_details(remedy) == details


def test_worth_states_throughput_and_gpu_hours() -> None:
    worth = Worth(samples_per_s=1000.0, samples_per_s_low=900.0, samples_per_s_high=1100.0, saved_hours_per_day=48.0, hours_per_day=96.0)
    assert remedies.worth_text(worth, GPUS) == "1,000 (900 to 1,100) images/s more; saves 48 of 96 GPU-hours/day"
