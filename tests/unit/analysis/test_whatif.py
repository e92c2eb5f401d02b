"""What-if queries: gains against closed forms, their assumptions, and rejected queries."""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import fsum, log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from diagnoses import (
    CIFAR,
    DIAGNOSES,
    IMAGENET,
    PIL_MS,
    SMALL,
    TORCH,
    WORK,
    benchmark_of,
    cpu_diagnosis,
    diagnosis,
    far_away,
    loader_contends_gpu,
    make_loader_stats,
    with_layers,
)
from msgspec.structs import replace

from ddpbench.analysis.controls import baseline_of, step_s
from ddpbench.analysis.cpu_demand import all_cores_workers
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.pipeline.costs import LoaderCost
from ddpbench.analysis.pipeline.model import PipelineModel, more_workers_to_benchmark, pipeline_model
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.gain import MAX_RESIDUAL, GainEstimate, model_error
from ddpbench.analysis.whatif.query import WhatIfAnswer, answer_whatif, diagnosed_input
from ddpbench.analysis.whatif.state import LoadCurve
from ddpbench.cli import main
from ddpbench.record.diagnosis import AlternativeLoader
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load, save
from ddpbench.record.prediction import MissingMeasurement, Scenario
from ddpbench.record.record import Job, KernelActivity
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT
from ddpbench.record.roofline import FusedWork
from ddpbench.report.console import make_console
from ddpbench.report.pages.whatif import render_whatif

RESULTS = Path(__file__).parents[3] / "results"
KEPT = RESULTS / "diagnosis" / "resnet18-2-cpu-ranks.json"
DEVICE_RATE = 256 / (sum(WORK.values()) + 0.5) * 1000
"""Images/s that the example GPU trains from batches on the device."""


SAMPLE_MS = {"read": 0.1, "decode": 2.4, "augment": 1.6, "collate": 0.5}
"""CPU time of an image."""


def whatif(job: Job, *others: Job, **change: Any) -> WhatIfAnswer:
    return answer_whatif(job, Scenario(**change), others)


def gain(job: Job, *others: Job, **change: Any) -> float:
    return whatif(job, *others, **change).estimate.gain


def codes(estimate: GainEstimate) -> set[str]:
    return {each.code for each in estimate.assumptions}


def missing(job: Job, *others: Job, **change: Any) -> MissingMeasurement:
    """The measurement required for an answer."""
    with pytest.raises(MissingMeasurementError) as lacking:
        whatif(job, *others, **change)
    return lacking.value.missing


def few_workers(**changes: Any) -> Job:
    """One worker per GPU and 4.6 ms per image: 217 images/s."""
    common = {"config": replace(TORCH, workers=1), "cpu_ms": SAMPLE_MS, "busy": 0.1}
    return diagnosis(1000 / fsum(SAMPLE_MS.values()), **{**common, **changes})


def test_more_workers_gain_linearly_until_the_device_limits() -> None:
    job = few_workers()
    assert gain(job, workers=4) == pytest.approx(4, rel=0.02)
    assert gain(job, workers=8) == pytest.approx(8, rel=0.02)
    many = whatif(job, workers=60, cores_per_gpu=80)
    assert many.estimate.gain == pytest.approx(DEVICE_RATE / (1000 / 4.6), rel=0.1)
    assert many.estimate.bottleneck == "device"


def with_all_cores(job: Job, workers: int, cpu_ms: Mapping[str, float], received_ms: float = 0.02, **stats: Any) -> Job:
    """``job`` with a loader benchmark of ``workers`` workers per rank.

    In it, an image costs ``cpu_ms``, and the trainer takes ``received_ms`` of CPU time to receive a batch.
    """
    assert job.diagnosis is not None
    rate, batch = 1000 * workers / fsum(cpu_ms.values()), job.records[0].config.batch_size
    job.diagnosis.all_cores_loader_benchmarks = [
        replace(
            benchmark_of(rank, rate, batch, cpu_ms),
            workers=workers,
            main_process_cpu_s=40 * received_ms / 1000,
            loader_stats=make_loader_stats(40 * batch, cpu_ms, **stats),
        )
        for rank in range(job.records[0].world_size)
    ]
    return job


def dearer(factor: float) -> dict[str, float]:
    return {stage: factor * span for stage, span in SAMPLE_MS.items()}


def test_images_cost_more_with_all_cores_busy() -> None:
    """9 cores per GPU, of which the run keeps two busy."""
    unknown = few_workers(cores=9.0 * 4)
    found = whatif(unknown, workers=8).estimate
    assert found.gain == pytest.approx(8, rel=0.02)
    assert "above-measured-load" in codes(found)
    measured = with_all_cores(few_workers(cores=9.0 * 4), 9, dearer(1.3))
    found = whatif(measured, workers=8).estimate
    assert found.gain == pytest.approx(8 / 1.3, rel=0.02)
    assert "above-measured-load" not in codes(found)
    assert 5 / 1.3 < gain(measured, workers=5) < 5, "between the two measured loads"


def test_cores_and_workers_needed_follow_the_cost_with_all_cores_busy() -> None:
    def model(job: Job) -> PipelineModel:
        return pipeline_model(diagnosed_input(job)[0])

    alone, busy = model(few_workers(cores=9.0 * 4)), model(with_all_cores(few_workers(cores=9.0 * 4), 9, dearer(1.3)))
    assert alone.cores_needed is not None
    assert alone.workers_needed is not None
    assert busy.cores_needed == pytest.approx(1.3 * alone.cores_needed, rel=0.03)
    assert busy.workers_needed == pytest.approx(1.3 * alone.workers_needed, rel=0.03)
    assert busy.worker_bound_rate == alone.worker_bound_rate, "the run itself leaves cores idle"


def test_first_workers_cost_the_trainer_their_handoff() -> None:
    """Steps of 62.4 ms for which batches are ready, and 10 ms to receive each from a worker."""
    cost, common = {"decode": 4.0, "augment": 0.9}, {"settings": {"workers": 0}, "cores": 64.0, "busy": 2 / 64}
    free = gain(cpu_diagnosis(8 / 0.1016, cpu_ms=cost, **common), workers=8)
    job = with_all_cores(cpu_diagnosis(8 / 0.1016, cpu_ms=cost, **common), 32, cost, received_ms=10.0)
    assert gain(job, workers=8) == pytest.approx(free * 62.4 / 72.4, rel=0.05)


def test_handoff_of_first_workers_is_that_of_the_batch_asked_for() -> None:
    """Not the wait in the benchmark, in which batches of workers that are ahead lie in a queue."""
    cost = {"decode": 4.0, "augment": 0.9}
    job = with_all_cores(cpu_diagnosis(8 / 0.1016, cpu_ms=cost, settings={"workers": 0}), 2, cost, received_ms=10.0, handoff_ms=30.0)
    assert whatif(job, workers=1).after.handoff_s == pytest.approx(0.010)
    larger = whatif(job, workers=1, batch_size=32).after
    assert larger.handoff_s == pytest.approx(0.040)
    assert larger.handoff_cpu_s == pytest.approx(4 * whatif(job, workers=1).after.handoff_cpu_s)


def test_no_workers_are_recommended_if_receiving_a_batch_takes_longer_than_loading_it() -> None:
    job = with_all_cores(cpu_diagnosis(8 / 0.1016, cpu_ms={"decode": 4.0, "augment": 0.9}, settings={"workers": 0}), 2, {"decode": 4.0})
    assert job.diagnosis is not None
    model = pipeline_model(diagnosed_input(job)[0])
    assert model.recommended_workers is not None
    [first, *others] = job.diagnosis.all_cores_loader_benchmarks
    job.diagnosis.all_cores_loader_benchmarks = [replace(each, main_process_cpu_s=each.samples * 0.05) for each in (first, *others)]
    assert pipeline_model(diagnosed_input(job)[0]).recommended_workers is None


def waiting_workers(shared: float) -> Job:
    """Four workers per rank wait 11.8 of 12.1 ms per image; 32 wait ``shared`` times as long, since they share what they wait for."""
    many = {"sample": 0.2 + 11.8 * shared, "collate": 0.1}
    job = with_all_cores(far_away(busy=0.05), 32, many)
    assert job.diagnosis is not None
    job.diagnosis.all_cores_loader_benchmarks = [
        replace(each, loader_stats=make_loader_stats(each.samples, {"sample": 0.2, "collate": 0.1}, wall_ms=many, runqueue_wait_s=0.0))
        for each in job.diagnosis.all_cores_loader_benchmarks
    ]
    return job


@pytest.mark.parametrize(("shared", "expected"), [(1.0, 8.0), (2.0, 4.0)])
def test_more_workers_wait_as_long_as_in_their_benchmark(shared: float, expected: float) -> None:
    found = whatif(waiting_workers(shared), workers=32)
    assert found.estimate.gain == pytest.approx(expected, rel=0.05)
    assert found.after.has_benchmarked_waits
    fewer = whatif(waiting_workers(shared), workers=16).estimate.gain
    assert fewer == pytest.approx(4.0 if shared == 1 else 2.8, rel=0.1), "each waits less than 32 do"
    guessed = whatif(far_away(busy=0.05), workers=32)
    assert not guessed.after.has_benchmarked_waits
    assert guessed.estimate.gain == pytest.approx(8.0, rel=0.05)
    assert log(guessed.estimate.high / guessed.estimate.low) > 1.3 * log(found.estimate.high / found.estimate.low)


WAITS = LoaderCost({"sample": 0.001}, {"sample": 0.020}, runqueue_wait_s=0.0)
COMPUTES = LoaderCost({"sample": 0.019}, {"sample": 0.020}, runqueue_wait_s=0.0)


@pytest.mark.parametrize(
    ("cost", "workers", "keep_up", "expected"),
    [
        (COMPUTES, 2, 20.0, 8),
        (None, 2, 20.0, 8),
        (WAITS, 2, 20.0, 20),
        (WAITS, 2, 900.0, 128),
        (WAITS, 0, 5.0, 5),
        (WAITS, 8, 20.0, 20),
        (WAITS, 8, 5.0, None),
    ],
)
def test_workers_that_wait_are_benchmarked_in_numbers_that_keep_up(
    cost: LoaderCost | None, workers: int, keep_up: float, expected: int | None
) -> None:
    assert more_workers_to_benchmark(8.0, 1, workers, cost, keep_up) == expected


@pytest.mark.parametrize(
    ("cores", "ranks", "workers", "found"), [(16, 1, 4, 16), (16, 1, 15, None), (16, 2, 0, 8), (2, 2, 0, 1), (1.5, 2, 0, 1)]
)
def test_workers_for_every_core(cores: float, ranks: int, workers: int, found: int | None) -> None:
    assert all_cores_workers(cores, ranks, workers) == found


def test_cores_limit_the_gain_of_workers() -> None:
    job = few_workers(cores=8.0)
    crowded = whatif(job, workers=16)
    assert crowded.estimate.bottleneck == "cores"
    assert crowded.estimate.gain < 2.1
    assert "above-measured-load" in codes(crowded.estimate)
    assert gain(job, workers=16, cores_per_gpu=32) == pytest.approx(16, rel=0.05)


def test_loading_and_training_share_cores_on_cpu() -> None:
    """62.4 ms of CPU to train 8 images and 39.2 ms to load them, one rank per core."""
    job = cpu_diagnosis(8 / 0.1016, cpu_ms={"decode": 4.0, "augment": 0.9}, work=SMALL)
    assert gain(job, cores_per_gpu=4, workers=2) == pytest.approx(101.6 / 62.4, rel=0.06)


def test_training_cost_remains_if_a_loader_without_workers_is_replaced() -> None:
    """Loading cost goes away and training cost stays: 62.4 ms of CPU for 8 images, and 8 ms to decode in threads."""
    job = cpu_diagnosis(8 / 0.1016, cpu_ms={"decode": 4.0, "augment": 0.9}, settings={"workers": 0})
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [replace(each, main_process_cpu_s=each.loader_cpu_s) for each in job.diagnosis.loader_benchmarks]
    threads = [replace(benchmark_of(rank, 900.0, 8, {"decode": 1.0}), loader_stats=None) for rank in range(2)]
    job.diagnosis.alternative_loaders = [AlternativeLoader(loader="dali-cpu", workers=1, loader_benchmarks=threads)]
    found = whatif(job, loader="dali-cpu")
    assert found.before.trainer_cpu_curve
    assert found.after.trainer_cpu_curve
    assert found.after.trainer_cpu_curve.points[0][1] == pytest.approx(found.before.trainer_cpu_curve.points[0][1], rel=0.01)
    assert found.estimate.after.step_s >= found.before.trainer_cpu_curve.points[0][1] + 8 * 0.001


def test_prefetch_gains_only_with_uneven_batches() -> None:
    even = diagnosis(1500.0, cpu_ms={"decode": 9.0, "augment": 1.0})
    assert gain(even, prefetch=8) == pytest.approx(1, abs=0.01)
    uneven = [1000.0 + 2500.0 * (number % 16 == 0) for number in range(64)]
    cost = sum(uneven) / len(uneven) / 256
    heavy = diagnosis(2500.0, cpu_ms={"decode": cost}, stats={"batch_ms": uneven}, config=replace(TORCH, workers=30), cores=200.0)
    assert gain(heavy, prefetch=8) > 1.05


def dali_threads(workers: int, intervals_ms: list[float]) -> Job:
    """DALI on CPU with these batch intervals in the loader benchmark."""
    job = diagnosis(1000 * 256 / fmean(intervals_ms), config=replace(TORCH, loader="dali-cpu", workers=workers), cpu_ms={})
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [
        replace(each, intervals_ms=intervals_ms, loader_stats=None) for each in job.diagnosis.loader_benchmarks
    ]
    return job


def test_simultaneous_batches_of_pipelines_are_not_uneven() -> None:
    """Three pipelines of five threads, each with 150 ms per batch."""
    assert gain(dali_threads(15, [0.1, 0.2, 149.7] * 14), prefetch=8) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("workers", [2, 4, 7, 8, 12])
def test_dali_threads_gain_linearly_over_any_number_of_pipelines(workers: int) -> None:
    job = dali_threads(3, [250.0] * 40)
    assert gain(job, workers=workers) == pytest.approx(workers / 3, rel=0.01)
    assert gain(dali_threads(workers, [250.0] * 40), workers=3) == pytest.approx(3 / workers, rel=0.01)


def test_cpu_time_of_in_process_threads_is_counted_once() -> None:
    """The stored diagnosis of 15 threads in one pipeline on 16 cores, which slow the training."""
    fewer = whatif(load(RESULTS / "h200" / "diagnose-resnet50-dali-cpu-one-pipeline.json"), workers=8)
    assert abs(log(fewer.estimate.residual)) < 0.1
    assert fewer.estimate.gain == pytest.approx(8 / 15, rel=0.05)


def test_handoff_cpu_time_does_not_depend_on_workers() -> None:
    """The trainer takes 1.1 s of CPU per step in the run and 0.04 s on synthetic data; the difference is not caused by context switches."""
    job = DIAGNOSES["oversubscribed"][0]()
    device = job.records[1]
    device.rounds = [replace(timed, traces=[replace(trace, cpu_s=0.04 * trace.steps) for trace in timed.traces]) for timed in device.rounds]
    assert gain(job, workers=3) == pytest.approx(1.125, abs=0.03), "without the handoff cost it counts as context switches"
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [
        replace(each, loader_cpu_s=each.loader_cpu_s + 0.005 * each.samples) for each in job.diagnosis.loader_benchmarks
    ]
    assert gain(job, workers=3) == pytest.approx(1, abs=0.01)
    without = whatif(job, workers=0)
    assert without.before.handoff_cpu_s == pytest.approx(1.055, abs=0.01)
    assert without.after.handoff_cpu_s == 0


def test_data_in_memory_saves_the_read_wait() -> None:
    """Reading is 30 of the 39.1 ms per image in a worker."""
    job = DIAGNOSES["slow-storage"][0]()
    assert gain(job, data_in_memory=True) > 2
    assert gain(few_workers(), data_in_memory=True) == pytest.approx(1, abs=0.01)


def test_more_workers_assume_scaling_storage() -> None:
    job = DIAGNOSES["slow-storage"][0]()
    slow, fast = whatif(job, workers=60).estimate, whatif(few_workers(), workers=4).estimate
    assert "storage-scales" in codes(slow)
    assert slow.gain / slow.low > fast.gain / fast.low
    assert "storage-scales" not in codes(whatif(job, workers=60, data_in_memory=True).estimate)


def test_storage_limits_the_gain_of_workers() -> None:
    """3,100 files/s per node with 5% cached: at most 815 images/s per rank; the run reads 380."""
    job = DIAGNOSES["slow-storage"][0]()
    crowded = whatif(job, workers=60, cores_per_gpu=64).estimate
    assert crowded.gain == pytest.approx(815 / 380, rel=0.03)
    assert crowded.bottleneck == "storage"
    assert "storage-limit" in codes(crowded)
    assert gain(job, workers=60, cores_per_gpu=64, data_in_memory=True) > 3
    assert job.diagnosis is not None
    assert job.diagnosis.storage is not None
    job.diagnosis.storage = replace(job.diagnosis.storage, cold_files_per_s=900.0)
    assert gain(job, workers=60, cores_per_gpu=64) > 3, "a storage rate below the achieved rate is ignored"


def test_pinned_memory_saves_the_copy_wait() -> None:
    """Copies are 18 of 62 ms per step and shrink to 0.5 ms."""
    assert gain(DIAGNOSES["host-to-device"][0](), pin_memory=True) > 1.2


def test_cuda_graphs_reduce_the_step_to_its_kernels() -> None:
    job = DIAGNOSES["launch-bound"][0]()
    assert gain(job, compile="reduce-overhead", workers=30, cores_per_gpu=64) == pytest.approx(44.4 / 21.0, rel=0.05)
    assert missing(job, compile="max-autotune") == MissingMeasurement(code="step-compiled", compile_mode="max-autotune")


@pytest.mark.parametrize(("num_bytes", "flops"), [(40e9, 0.0), (32e9, 1.4e12)])  # 10 ms; 8 ms of a copy and 2 ms of matrix products
def test_fused_kernels_take_the_time_of_a_copy_and_of_matrix_products(num_bytes: float, flops: float) -> None:
    fused = FusedWork(replaced_ms=20.0, num_bytes=num_bytes, flops=flops)
    one = with_layers(diagnosis(None, ranks=1, cpu_ms={"decode": 0.1}), fused)
    step_ms = 1e3 * (step_s(one.records[1]) or 0.0)
    assert gain(one, fast=True) == pytest.approx(step_ms / (23 + 10), rel=0.04)  # copies stay
    assert "fused-kernels" in codes(whatif(one, fast=True).estimate)


def test_fused_kernels_without_cuda_graphs_leave_the_gaps_between_kernels() -> None:
    one = with_layers(diagnosis(None, ranks=1, cpu_ms={"decode": 0.1}), FusedWork(replaced_ms=20.0, num_bytes=40e9))
    step_ms = 1e3 * (step_s(one.records[1]) or 0.0)
    assert gain(one, fused_kernels=True) == pytest.approx(step_ms / (step_ms - 10), rel=0.04)
    assert "cuda-graphs" not in codes(whatif(one, fused_kernels=True).estimate)
    assert gain(one, fast=True, fused_kernels=True) == gain(one, fast=True)
    assert "cuda-graphs" in codes(whatif(one, fast=True).estimate)


def test_fused_kernels_are_not_predicted_for_a_host_that_would_not_issue_them_faster() -> None:
    launch_bound = with_layers(DIAGNOSES["launch-bound"][0](), FusedWork(replaced_ms=20.0, num_bytes=40e9))
    for job in (launch_bound, diagnosis(None)):
        assert missing(job, fused_kernels=True) == MissingMeasurement(code="step-fused")


def test_fused_kernels_leave_the_gradient_sync_of_several_ranks() -> None:
    fused = FusedWork(replaced_ms=20.0, num_bytes=40e9)
    several = with_layers(diagnosis(None, cpu_ms={"decode": 0.1}), fused)
    step_ms = 1e3 * (step_s(several.records[1]) or 0.0)
    assert gain(several, fast=True) == pytest.approx(step_ms / (step_ms - 10), rel=0.04)
    several.records[1].kernel_activity = KernelActivity(step_ms=step_ms, kernel_ms=28.0)
    phases_ms = summarize(several.records[1]).phases_ms
    waits_ms = sum(phases_ms[phase] for phase in ("data", "host_to_device", "broadcast", "sync"))
    assert gain(several, fast=True) == pytest.approx(step_ms / (28 - 10 + waits_ms), rel=0.06), "no gaps between kernels"


def test_fast_is_a_remedy_of_a_launch_bound_diagnosis_if_it_gains() -> None:
    job = DIAGNOSES["launch-bound"][0]()
    for fused, expected in (
        (FusedWork(replaced_ms=20.0, num_bytes=40e9), ["fast"]),
        (FusedWork(replaced_ms=0.0, num_bytes=200e9), ["cuda-graphs"]),
    ):
        with_layers(job, fused)
        judge_all(job)
        inputs, builder = diagnosed_input(job)
        assert inputs.record.verdict
        assert inputs.record.verdict.kind == "launch-bound"
        assert [remedy.code for remedy in recommend(builder, inputs, inputs.record.verdict)] == expected


def test_fast_is_a_remedy_of_a_compute_bound_diagnosis_if_it_gains() -> None:
    codes_of = []
    for num_bytes in (40e9, 78e9):  # 10 ms, and 19.5 ms of 20
        job = with_layers(diagnosis(None, ranks=1, cpu_ms={"decode": 0.1}), FusedWork(replaced_ms=20.0, num_bytes=num_bytes))
        judge_all(job)
        inputs, builder = diagnosed_input(job)
        assert inputs.record.verdict
        assert inputs.record.verdict.kind == "compute-bound"
        codes_of.append([remedy.code for remedy in recommend(builder, inputs, inputs.record.verdict)])
    assert codes_of == [["fast"], ["faster-compute"]]


def test_fast_keeps_its_gain_with_another_batch_size() -> None:
    job = with_layers(diagnosis(None, ranks=1, cpu_ms={"decode": 0.1}), FusedWork(replaced_ms=20.0, num_bytes=40e9))
    larger = diagnosis(None, ranks=1, config=replace(TORCH, batch_size=512), work={phase: 2 * span for phase, span in WORK.items()})
    assert gain(job, larger, fast=True, batch_size=512) == pytest.approx(gain(job, fast=True), rel=0.05)
    assert gain(job, larger, fused_kernels=True, batch_size=512) == pytest.approx(gain(job, fused_kernels=True), rel=0.05)


def test_fast_is_not_predicted_without_measured_layers() -> None:
    assert missing(diagnosis(None), fast=True) == MissingMeasurement(code="step-fast")
    assert missing(with_layers(diagnosis(None), None), fast=True) == MissingMeasurement(code="step-fast")


def test_launch_bound_step_gains_from_larger_batch() -> None:
    job = diagnosis(None, cpu_ms={"decode": 0.1}, kernel_activity=KernelActivity(step_ms=44.4, kernel_ms=10.0))
    assert gain(job, batch_size=512) == pytest.approx(2, rel=0.05)
    assert gain(diagnosis(None, cpu_ms={"decode": 0.1}), batch_size=512) == pytest.approx(1, abs=0.15)


def test_larger_batch_amortizes_gradient_sync_on_cpu() -> None:
    sync = {"sync": fsum(SMALL.values())}
    half = cpu_diagnosis(None, work={**SMALL, **sync}, device={**SMALL, **sync}, background={**SMALL, **sync}, cpu_ms={"decode": 0.01})
    none = cpu_diagnosis(None, cpu_ms={"decode": 0.01})
    batch = half.records[0].config.batch_size
    assert gain(half, batch_size=2 * batch) == pytest.approx(4 / 3, rel=0.1), "1.5 times the time for twice the images"
    assert gain(none, batch_size=2 * batch) == pytest.approx(1, rel=0.1)


def test_borrowed_step_keeps_copies_and_interference_of_the_run() -> None:
    job = DIAGNOSES["replay-bound"][0]()
    larger = diagnosis(None, config=replace(TORCH, batch_size=512), work={phase: 2 * span for phase, span in WORK.items()})
    found = whatif(job, larger, batch_size=512)
    assert found.before.interference_s > 0.005
    assert found.after.interference_s == pytest.approx(2 * found.before.interference_s)
    assert found.estimate.gain == pytest.approx(1, abs=0.05)


def test_steps_are_borrowed_for_combined_changes() -> None:
    full = diagnosis(None, config=replace(TORCH, precision="fp32"), work={phase: 3 * span for phase, span in WORK.items()})
    fused = diagnosis(None, config=replace(TORCH, precision="fp32", compile="default"))
    job = diagnosis(None, cpu_ms={"decode": 0.1})
    found = whatif(job, full, fused, precision="fp32", compile="default")
    assert found.estimate.gain == pytest.approx(1, abs=0.02), "compiled, full precision takes as long as the other does"
    assert gain(job, full, fused, precision="fp32") < 0.5


@pytest.mark.parametrize(
    "settings", [{"fused_kernels": True}, {"cuda_graph": True}, {"cudnn_benchmark_limit": 0}, {"optimizer_impl": "triton"}], ids=str
)
def test_steps_of_other_kernels_are_not_borrowed(settings: dict[str, Any]) -> None:
    full = diagnosis(None, config=replace(TORCH, precision="fp32", **settings))
    job = diagnosis(None, cpu_ms={"decode": 0.1})
    assert missing(job, full, precision="fp32") == missing(job, precision="fp32")


def test_only_compiled_steps_need_the_same_combo_kernels_to_be_borrowed() -> None:
    combined = replace(TORCH, compile="default", combo_kernels=True)
    job, other = (diagnosis(None, config=each, cpu_ms={"decode": 0.1}) for each in (combined, replace(combined, combo_kernels=False)))
    slow = {phase: 3 * span for phase, span in WORK.items()}
    eager, full = (diagnosis(None, config=each, work=slow) for each in (TORCH, replace(combined, precision="fp32")))
    assert gain(job, eager, compile="off") < 0.5
    assert gain(job, full, precision="fp32") < 0.5
    assert missing(other, full, precision="fp32") == missing(other, precision="fp32")


def candidate(name: str, cost: float, speed: float, step_ms: list[float] | None = None) -> AlternativeLoader:
    alone = [benchmark_of(rank, speed, 256, {"decode": cost}) for rank in range(4)]
    if name.startswith("dali"):
        alone = [replace(each, loader_stats=None) for each in alone]
    return AlternativeLoader(loader=name, workers=15, loader_benchmarks=alone, background_step_ms=step_ms or [])


def test_other_loader_requires_its_benchmark() -> None:
    job = diagnosis(1600.0, busy=0.9)
    assert job.diagnosis is not None
    with pytest.raises(MissingMeasurementError) as lacking:
        whatif(job, loader="torch-uint8")
    assert lacking.value.missing == MissingMeasurement(code="loader-benchmark", loader="torch-uint8")
    assert "--loader torch-uint8" in lacking.value.command
    job.diagnosis.alternative_loaders = [candidate("torch-uint8", sum(PIL_MS.values()) / 2, 3200.0), candidate("dali-gpu", 0.1, 17_000.0)]
    assert gain(job, loader="torch-uint8") == pytest.approx(2, rel=0.05)
    assert missing(job, loader="dali-gpu") == MissingMeasurement(code="loader-in-background", loader="dali-gpu")
    job.diagnosis.alternative_loaders[1] = candidate("dali-gpu", 0.1, 17_000.0, [60.0] * 20)
    fed = whatif(job, loader="dali-gpu")
    assert 1000 * fed.estimate.after.step_s == pytest.approx(60, rel=0.02)
    job.diagnosis.alternative_loaders[1] = replace(job.diagnosis.alternative_loaders[1], delivery_ratio=0.5)
    behind = whatif(job, loader="dali-gpu")
    half_a_batch_ms = 0.5 * 256 / 17_000.0 * 1000
    assert 1000 * behind.estimate.after.step_s == pytest.approx(60 + half_a_batch_ms, rel=0.02)


def test_loader_without_stats_gives_its_benchmarked_rate() -> None:
    job = diagnosis(1600.0, busy=0.9)
    assert job.diagnosis is not None
    silent = candidate("package.module:loader", sum(PIL_MS.values()) / 2, 3200.0)
    job.diagnosis.alternative_loaders = [
        replace(silent, loader_benchmarks=[replace(each, loader_stats=None) for each in silent.loader_benchmarks])
    ]
    assert gain(job, loader="package.module:loader") == pytest.approx(2, rel=0.05)


def test_gpu_loader_cost_includes_background_delivery() -> None:
    keeps_up, behind = (loader_contends_gpu(background_delivery=part) for part in (1.0, 0.5))
    alone_ms = 1000 * 256 / 17_974.0
    steps_ms = [1000 * whatif(job, prefetch=4).estimate.before.step_s for job in (keeps_up, behind)]
    assert steps_ms[1] - steps_ms[0] == pytest.approx(0.5 * alone_ms, rel=0.1)


def test_other_hw_decoder_load_requires_its_benchmark() -> None:
    job = DIAGNOSES["loader-contends-gpu"][0]()
    assert job.diagnosis is not None
    with pytest.raises(MissingMeasurementError) as lacking:
        whatif(job, hw_decoder_load=0.99)
    assert lacking.value.missing == MissingMeasurement(code="loader-benchmark", loader="dali-gpu", hw_decoder_load=0.99)
    assert "--hw-decoder-load 0.99" in lacking.value.command
    job.diagnosis.alternative_loaders = [replace(candidate("dali-gpu", 0.1, 17_000.0, [50.0] * 20), hw_decoder_load=0.99)]
    assert 1000 * whatif(job, hw_decoder_load=0.99).estimate.after.step_s == pytest.approx(50, rel=0.02)


def test_other_diagnosis_provides_loader_and_steps() -> None:
    job = diagnosis(1600.0, busy=0.9)
    cheaper = diagnosis(3200.0, config=replace(TORCH, loader="torch-uint8"), cpu_ms={"decode": 4.5}, busy=0.9)
    assert gain(job, cheaper, loader="torch-uint8") == pytest.approx(2, rel=0.1)
    half = diagnosis(None, config=replace(TORCH, precision="fp32"), work={phase: 3 * span for phase, span in WORK.items()})
    fast, slow = whatif(job, half, precision="fp32").estimate, whatif(few_workers(), half, precision="fp32").estimate
    assert (fast.bottleneck, fast.has_uneven_batches) != (slow.bottleneck, slow.has_uneven_batches)
    with pytest.raises(UsageError, match="different devices"):
        whatif(job, diagnosis(1600.0, ranks=2), workers=3)


def test_present_setting_is_rejected() -> None:
    with pytest.raises(UsageError, match="--workers 1 is already set"):
        whatif(few_workers(), workers=1)
    found = whatif(few_workers(), workers=4, prefetch=2)
    assert found.already_set == Scenario(prefetch=2)
    out = io.StringIO()
    render_whatif(few_workers(), found, make_console(out, 80))
    assert "--prefetch 2 is already set and gains nothing" in out.getvalue()


def test_interval_contains_the_gain_and_grows_with_assumptions() -> None:
    job = few_workers()
    near, far = whatif(job, workers=2).estimate, whatif(job, workers=2, gpus=8, cores_per_gpu=16).estimate
    for each in (near, far):
        assert each.low < each.gain < each.high
    assert log(far.high / far.low) > log(near.high / near.low)
    assert model_error(1.0, 0.8) < model_error(1.3, 0.8) < model_error(1.3, 0.6)
    assert model_error(1.3, 1.0) < model_error(3.0, 1.0)


def test_gain_is_capped_by_the_device() -> None:
    """The model overestimates this run's step by 20%, so that its error would look like a gain."""
    job = load(RESULTS / "h200" / "diagnose-resnet50-dali-cpu.json")
    found = whatif(job, workers=60, cores_per_gpu=64).estimate
    speeds = {record.role: fmean(timed.samples_per_s for timed in record.rounds) for record in job.records}
    most = speeds[COMPUTE_ONLY] / speeds[BASELINE]
    assert found.residual > 1.15
    assert found.gain == pytest.approx(most, rel=0.03)
    assert found.high < 1.08 * most


def test_single_rank_has_no_sync_and_cannot_predict_it() -> None:
    job = DIAGNOSES["sync-bound"][0]()
    alone = next(record for record in job.records if record.role == INDEPENDENT)
    assert whatif(job, gpus=1).estimate.after.step_s == pytest.approx(alone.rounds[0].wall_s / alone.rounds[0].traces[0].steps, rel=0.05)
    alone.rounds.clear()
    assert missing(job, gpus=1).code == "step-without-sync"
    assert {each.code: each.ranks for each in whatif(few_workers(ranks=1), gpus=4).estimate.assumptions}["sync-hidden"] == 4


def test_same_query_gives_the_same_answer() -> None:
    assert whatif(few_workers(), workers=3).estimate == whatif(few_workers(), workers=3).estimate


def test_model_reproduces_the_diagnosed_run() -> None:
    """The stored diagnosis of two ranks on two busy cores, where no loader setting gains anything."""
    job = load(KEPT)
    more = whatif(job, workers=2)
    assert abs(log(more.estimate.residual)) < 0.1
    assert more.estimate.low < 1 < more.estimate.high


PICTURES = replace(IMAGENET, dataset="", file_kind="images")
"""An image folder with other classes than ImageNet's, not only JPEGs."""


@pytest.mark.parametrize(
    ("job", "change", "says"),
    [
        (few_workers, {"workers": 0, "prefetch": 4}, "--prefetch has no effect without workers"),
        (few_workers, {"loader": "synthetic"}, "synthetic is not a loader to switch to"),
        (few_workers, {"loader": "tensor"}, "tensor keeps the whole dataset on the device, but this record reads an image folder"),
        (lambda: diagnosis(430.0, files=PICTURES), {"loader": "tensor"}, "but this record reads an image folder"),
        (lambda: cpu_diagnosis(60.0), {"loader": "dali-gpu"}, "dali-gpu decodes on a GPU"),
        (lambda: cpu_diagnosis(60.0, files=CIFAR), {"loader": "dali-cpu"}, "dali-cpu reads image folders, but this record reads none"),
        (lambda: cpu_diagnosis(60.0), {"pin_memory": False}, "--pin-memory has no effect on CPU ranks"),
        (lambda: cpu_diagnosis(60.0), {"pin_memory": True}, "--pin-memory has no effect on CPU ranks"),
        (few_workers, {"hw_decoder_load": 0.5}, "the loader torch does not decode on a GPU"),
        (few_workers, {"data_in_memory": False}, "--no-data-in-memory is already set"),
    ],
)
def test_impossible_scenario_is_rejected(job: Any, change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        whatif(job(), **change)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("job", "change", "lacking"),
    [
        (lambda: diagnosis(430.0, files=PICTURES), {"loader": "dali-cpu"}, MissingMeasurement(code="loader-benchmark", loader="dali-cpu")),
        (few_workers, {"precision": "fp32"}, MissingMeasurement(code="step-in-precision", precision="fp32")),
        (far_away, {"data_in_memory": True}, MissingMeasurement(code="read-wait", loader="torch")),
    ],
)
def test_scenario_without_its_measurement_is_rejected(job: Any, change: dict[str, Any], lacking: MissingMeasurement) -> None:
    assert missing(job(), **change) == lacking


def test_run_with_large_residual_has_no_prediction() -> None:
    job = few_workers()
    job.records[0].rounds = [replace(timed, wall_s=2 * timed.wall_s) for timed in job.records[0].rounds]
    found = missing(job, workers=4)
    assert found.code == "unexplained-step"
    assert found.simulated_ratio is not None
    assert found.simulated_ratio < 1 / MAX_RESIDUAL


def test_record_without_diagnosis_is_rejected(tmp_path: Path) -> None:
    job = few_workers()
    job.records, job.kind = job.records[1:], "run"
    with pytest.raises(UsageError, match="not a diagnosis"):
        whatif(job, workers=2)
    rounds = few_workers()
    real = baseline_of(rounds)
    assert real is not None
    real.rounds = []
    with pytest.raises(UsageError, match="has no round"):
        whatif(rounds, workers=2)


def test_load_curve_interpolates_without_extrapolation() -> None:
    curve = LoadCurve.from_points([(1.0, 2.0), (2.0, 4.0)])
    assert [curve.at(load) for load in (0.5, 1.0, 1.5, 2.0, 3.0)] == [2.0, 2.0, 3.0, 4.0, 4.0]
    assert [curve.covers(load) for load in (0.5, 2.4, 2.6)] == [True, True, False]
    assert not curve.starts_above(0.5), "one core per thread: no waiting"
    assert [LoadCurve.from_points([(3.0, 2.0)]).starts_above(load) for load in (0.5, 2.0, 3.0)] == [True, True, False]


def test_whatif_page_fits_80_columns_and_lists_assumptions() -> None:
    out = io.StringIO()
    render_whatif(few_workers(), whatif(few_workers(), workers=4, gpus=8), make_console(out))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for words in ("--workers 4 --gpus 8: ", "images/s, measured", ", 90%)", "limit", "assumptions", "a step on 8 ranks takes as long"):
        assert words in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no setting is changed"),
        (["--workers", "2000"], "--workers cannot be '2000'"),
        (["--cores-per-gpu", "0"], "--cores-per-gpu cannot be '0'"),
        (["--loader", "torhc"], "unknown loader 'torhc'"),
        (["--precision", "fp33"], "unknown precision 'fp33'"),
        (["--loader", "dali-gpu"], "dali-gpu decodes on a GPU, but the record has CPU ranks"),
        (["--precision", "amp-bf16"], "missing measurement: a step in amp-bf16"),
    ],
)
def test_invalid_whatif_command_is_rejected_in_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["whatif", str(KEPT), *words])
    assert ended.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"ddpbench: error: {says}")
    assert hint.startswith("hint: ")


def test_whatif_command_prints_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(few_workers(), tmp_path / "record.json")
    assert main(["whatif", str(tmp_path / "record.json"), "--workers", "4"]) == 0
    assert "--workers 4:  4.0x (" in " ".join(capsys.readouterr().out.split("\n")).replace("4: 4", "4:  4")
