"""What a diagnosis answers: gains that closed forms give, what it takes for granted, and what it refuses to guess."""

from __future__ import annotations

import io
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
    alone_of,
    diagnosis,
    far_away,
    loader_contends_gpu,
    on_processors,
)
from msgspec.structs import replace

from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.gain import MAX_RESIDUAL, GainEstimate, model_error
from ddpbench.analysis.whatif.query import WhatIfAnswer, answer_whatif
from ddpbench.analysis.whatif.state import LoadCurve
from ddpbench.cli import main
from ddpbench.record.diagnosis import AlternativeLoader
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load, save
from ddpbench.record.prediction import MissingMeasurement, Scenario
from ddpbench.record.record import Job, KernelActivity
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT
from ddpbench.report.console import make_console
from ddpbench.report.pages.whatif import render_whatif

RESULTS = Path(__file__).parents[3] / "results"
KEPT = RESULTS / "diagnosis" / "resnet18-2-cpu-ranks.json"
DEVICE_RATE = 256 / (sum(WORK.values()) + 0.5) * 1000
"""Images/s that a made-up GPU trains of batches that lie there."""


def asked(job: Job, *others: Job, **change: Any) -> WhatIfAnswer:
    return answer_whatif(job, Scenario(**change), others)


def gain(job: Job, *others: Job, **change: Any) -> float:
    return asked(job, *others, **change).estimate.gain


def codes(estimate: GainEstimate) -> set[str]:
    return {each.code for each in estimate.assumptions}


def missing(job: Job, **change: Any) -> MissingMeasurement:
    """The measurement that the answer would require."""
    with pytest.raises(MissingMeasurementError) as lacking:
        asked(job, **change)
    return lacking.value.missing


def few_workers(**changes: Any) -> Job:
    """One worker a GPU, for images that cost it 4.6 ms: it gives 217 a second."""
    cost = {"read": 0.1, "decode": 2.4, "augment": 1.6, "collate": 0.5}
    return diagnosis(1000 / sum(cost.values()), **{"config": replace(TORCH, workers=1), "cpu_ms": cost, "busy": 0.1, **changes})


def test_workers_gain_as_many_times_as_they_are_until_the_device_is_the_limit() -> None:
    job = few_workers()
    assert gain(job, workers=4) == pytest.approx(4, rel=0.02)
    assert gain(job, workers=8) == pytest.approx(8, rel=0.02)
    many = asked(job, workers=60, cores_per_gpu=80)
    assert many.estimate.gain == pytest.approx(DEVICE_RATE / (1000 / 4.6), rel=0.1)
    assert many.estimate.bottleneck == "device"


def test_no_number_of_workers_gives_more_than_the_cores() -> None:
    job = few_workers(cores=8.0)
    crowded = asked(job, workers=16)
    assert crowded.estimate.bottleneck == "cores"
    assert crowded.estimate.gain < 2.1
    assert "above-measured-load" in codes(crowded.estimate)
    assert gain(job, workers=16, cores_per_gpu=32) == pytest.approx(16, rel=0.05)


def test_on_processors_loading_and_training_share_the_cores() -> None:
    """62.4 ms of a core to train 8 images and 39.2 to load them, a rank of each of two cores."""
    job = on_processors(8 / 0.1016, cpu_ms={"decode": 4.0, "augment": 0.9}, work=SMALL)
    assert gain(job, cores_per_gpu=4, workers=2) == pytest.approx(101.6 / 62.4, rel=0.06)


def test_a_trainer_that_loads_trains_all_the_same_beside_another_loader() -> None:
    """What loading takes of it goes, and not its training: 62.4 ms of a core for 8 images, and 8 to decode them in threads."""
    job = on_processors(8 / 0.1016, cpu_ms={"decode": 4.0, "augment": 0.9}, settings={"workers": 0})
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [replace(each, main_process_cpu_s=each.loader_cpu_s) for each in job.diagnosis.loader_benchmarks]
    threads = [replace(alone_of(rank, 900.0, 8, {"decode": 1.0}), loader_stats=None) for rank in range(2)]
    job.diagnosis.alternative_loaders = [AlternativeLoader(loader="dali-cpu", workers=1, loader_benchmarks=threads)]
    found = asked(job, loader="dali-cpu")
    assert found.before.trainer_cpu_curve
    assert found.after.trainer_cpu_curve
    assert found.after.trainer_cpu_curve.points[0][1] == pytest.approx(found.before.trainer_cpu_curve.points[0][1], rel=0.01)
    assert found.estimate.after.step_s >= found.before.trainer_cpu_curve.points[0][1] + 8 * 0.001


def test_prefetch_gains_where_batches_come_unevenly_and_else_nothing() -> None:
    even = diagnosis(1500.0, cpu_ms={"decode": 9.0, "augment": 1.0})
    assert gain(even, prefetch=8) == pytest.approx(1, abs=0.01)
    uneven = [1000.0 + 2500.0 * (number % 16 == 0) for number in range(64)]
    cost = sum(uneven) / len(uneven) / 256
    heavy = diagnosis(2500.0, cpu_ms={"decode": cost}, told={"batch_ms": uneven}, config=replace(TORCH, workers=30), cores=200.0)
    assert gain(heavy, prefetch=8) > 1.05


def of_threads(workers: int, intervals_ms: list[float]) -> Job:
    """DALI on the processors, whose batches come in these intervals where nobody trains."""
    job = diagnosis(1000 * 256 / fmean(intervals_ms), config=replace(TORCH, loader="dali-cpu", workers=workers), cpu_ms={})
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [
        replace(each, intervals_ms=intervals_ms, loader_stats=None) for each in job.diagnosis.loader_benchmarks
    ]
    return job


def test_batches_that_pipelines_make_at_once_are_no_uneven_ones() -> None:
    """Three pipelines of five threads, of which each takes 150 ms for a batch."""
    assert gain(of_threads(15, [0.1, 0.2, 149.7] * 14), prefetch=8) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("workers", [2, 4, 7, 8, 12])
def test_threads_gain_as_many_times_as_they_are_over_however_many_pipelines(workers: int) -> None:
    job = of_threads(3, [250.0] * 40)
    assert gain(job, workers=workers) == pytest.approx(workers / 3, rel=0.01)
    assert gain(of_threads(workers, [250.0] * 40), workers=3) == pytest.approx(3 / workers, rel=0.01)


def test_what_threads_of_the_trainer_take_of_the_cores_is_counted_once() -> None:
    """The kept diagnosis of fifteen threads in one pipeline on sixteen cores, which hold up the training."""
    fewer = asked(load(RESULTS / "h200" / "diagnose-resnet50-dali-cpu-one-pipeline.json"), workers=8)
    assert abs(log(fewer.estimate.residual)) < 0.1
    assert fewer.estimate.gain == pytest.approx(8 / 15, rel=0.05)


def test_handing_batches_over_takes_as_much_of_the_cores_with_fewer_workers() -> None:
    """A step's trainer takes 1.1 s of a core in the run, and 0.04 on batches that are there: the difference is no price of turns."""
    job = DIAGNOSES["oversubscribed"][0]()
    device = job.records[1]
    device.rounds = [replace(timed, traces=[replace(trace, cpu_s=0.04 * trace.steps) for trace in timed.traces]) for timed in device.rounds]
    assert gain(job, workers=3) == pytest.approx(1.125, abs=0.03), "it might be one, where nobody saw what handing over takes"
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [
        replace(each, loader_cpu_s=each.loader_cpu_s + 0.005 * each.samples) for each in job.diagnosis.loader_benchmarks
    ]
    assert gain(job, workers=3) == pytest.approx(1, abs=0.01)
    without = asked(job, workers=0)
    assert without.before.handoff_cpu_s == pytest.approx(1.055, abs=0.01)
    assert without.after.handoff_cpu_s == 0


def test_files_in_memory_save_the_wait_for_them() -> None:
    """30 of the 39.1 ms that a worker takes for an image."""
    job = DIAGNOSES["slow-storage"][0]()
    assert gain(job, data_in_memory=True) > 2
    assert gain(few_workers(), data_in_memory=True) == pytest.approx(1, abs=0.01)


def test_more_workers_ask_more_of_the_storage() -> None:
    job = DIAGNOSES["slow-storage"][0]()
    told, fast = asked(job, workers=60).estimate, asked(few_workers(), workers=4).estimate
    assert "storage-scales" in codes(told)
    assert told.gain / told.low > fast.gain / fast.low
    assert "storage-scales" not in codes(asked(job, workers=60, data_in_memory=True).estimate)


def test_no_number_of_workers_reads_more_than_the_storage_gives() -> None:
    """A node's 3,100 files/s, of which a twentieth lies in memory: 815 images/s a rank, where 380 are read."""
    job = DIAGNOSES["slow-storage"][0]()
    crowded = asked(job, workers=60, cores_per_gpu=64).estimate
    assert crowded.gain == pytest.approx(815 / 380, rel=0.03)
    assert crowded.bottleneck == "storage"
    assert "storage-limit" in codes(crowded)
    assert gain(job, workers=60, cores_per_gpu=64, data_in_memory=True) > 3
    assert job.diagnosis is not None
    assert job.diagnosis.storage is not None
    job.diagnosis.storage = replace(job.diagnosis.storage, cold_files_per_s=900.0)
    assert gain(job, workers=60, cores_per_gpu=64) > 3, "of a rate that the run itself went beyond nothing is held"


def test_page_locked_memory_saves_the_copy() -> None:
    """18 of 62 ms a step that wait for copies, of which half a millisecond is left."""
    assert gain(DIAGNOSES["host-to-device"][0](), pin_memory=True) > 1.2


def test_graphs_leave_the_kernels_of_a_step() -> None:
    job = DIAGNOSES["launch-bound"][0]()
    assert gain(job, compile="reduce-overhead", workers=30, cores_per_gpu=64) == pytest.approx(44.4 / 21.0, rel=0.05)
    assert missing(job, compile="max-autotune") == MissingMeasurement(code="step-compiled", compile_mode="max-autotune")


def test_a_launch_bound_step_takes_more_images_for_nothing() -> None:
    job = diagnosis(None, cpu_ms={"decode": 0.1}, kernel_activity=KernelActivity(step_ms=44.4, kernel_ms=10.0))
    assert gain(job, batch_size=512) == pytest.approx(2, rel=0.05)
    assert gain(diagnosis(None, cpu_ms={"decode": 0.1}), batch_size=512) == pytest.approx(1, abs=0.15)


def test_a_larger_batch_shares_out_the_gradient_sync_of_processors_too() -> None:
    sync = {"sync": fsum(SMALL.values())}
    half = on_processors(None, work={**SMALL, **sync}, device={**SMALL, **sync}, beside={**SMALL, **sync}, cpu_ms={"decode": 0.01})
    none = on_processors(None, cpu_ms={"decode": 0.01})
    batch = half.records[0].config.batch_size
    assert gain(half, batch_size=2 * batch) == pytest.approx(4 / 3, rel=0.1), "three halves of the time for twice the images"
    assert gain(none, batch_size=2 * batch) == pytest.approx(1, rel=0.1)


def test_a_lent_step_takes_the_copies_and_the_interference_of_the_run_along() -> None:
    job = DIAGNOSES["replay-bound"][0]()
    larger = diagnosis(None, config=replace(TORCH, batch_size=512), work={phase: 2 * span for phase, span in WORK.items()})
    found = asked(job, larger, batch_size=512)
    assert found.before.interference_s > 0.005
    assert found.after.interference_s == pytest.approx(2 * found.before.interference_s)
    assert found.estimate.gain == pytest.approx(1, abs=0.05)


def test_steps_are_lent_for_several_changes_at_once() -> None:
    full = diagnosis(None, config=replace(TORCH, precision="fp32"), work={phase: 3 * span for phase, span in WORK.items()})
    fused = diagnosis(None, config=replace(TORCH, precision="fp32", compile="default"))
    job = diagnosis(None, cpu_ms={"decode": 0.1})
    found = asked(job, full, fused, precision="fp32", compile="default")
    assert found.estimate.gain == pytest.approx(1, abs=0.02), "compiled, full precision takes as long as the other does"
    assert gain(job, full, fused, precision="fp32") < 0.5


def candidate(name: str, cost: float, speed: float, step_ms: list[float] | None = None) -> AlternativeLoader:
    alone = [alone_of(rank, speed, 256, {"decode": cost}) for rank in range(4)]
    if name.startswith("dali"):
        alone = [replace(each, loader_stats=None) for each in alone]
    return AlternativeLoader(loader=name, workers=15, loader_benchmarks=alone, background_step_ms=step_ms or [])


def test_another_loader_is_priced_by_what_was_measured_of_it_and_not_guessed() -> None:
    job = diagnosis(1600.0, busy=0.9)
    assert job.diagnosis is not None
    with pytest.raises(MissingMeasurementError) as lacking:
        asked(job, loader="torch-uint8")
    assert lacking.value.missing == MissingMeasurement(code="loader-benchmark", loader="torch-uint8")
    assert "--loader torch-uint8" in lacking.value.command
    job.diagnosis.alternative_loaders = [candidate("torch-uint8", sum(PIL_MS.values()) / 2, 3200.0), candidate("dali-gpu", 0.1, 17_000.0)]
    assert gain(job, loader="torch-uint8") == pytest.approx(2, rel=0.05)
    assert missing(job, loader="dali-gpu") == MissingMeasurement(code="loader-in-background", loader="dali-gpu")
    job.diagnosis.alternative_loaders[1] = candidate("dali-gpu", 0.1, 17_000.0, [60.0] * 20)
    fed = asked(job, loader="dali-gpu")
    assert 1000 * fed.estimate.after.step_s == pytest.approx(60, rel=0.02)
    job.diagnosis.alternative_loaders[1] = replace(job.diagnosis.alternative_loaders[1], delivery_ratio=0.5)
    behind = asked(job, loader="dali-gpu")
    half_a_batch_ms = 0.5 * 256 / 17_000.0 * 1000
    assert 1000 * behind.estimate.after.step_s == pytest.approx(60 + half_a_batch_ms, rel=0.02)


def test_a_loader_whose_workers_tell_nothing_gives_what_it_gave_alone() -> None:
    job = diagnosis(1600.0, busy=0.9)
    assert job.diagnosis is not None
    silent = candidate("package.module:loader", sum(PIL_MS.values()) / 2, 3200.0)
    job.diagnosis.alternative_loaders = [
        replace(silent, loader_benchmarks=[replace(each, loader_stats=None) for each in silent.loader_benchmarks])
    ]
    assert gain(job, loader="package.module:loader") == pytest.approx(2, rel=0.05)


def test_what_a_loader_on_the_device_gave_beside_the_training_is_in_its_price() -> None:
    keeps_up, behind = (loader_contends_gpu(given_beside=part) for part in (1.0, 0.5))
    alone_ms = 1000 * 256 / 17_974.0
    steps_ms = [1000 * asked(job, prefetch=4).estimate.before.step_s for job in (keeps_up, behind)]
    assert steps_ms[1] - steps_ms[0] == pytest.approx(0.5 * alone_ms, rel=0.1)


def test_another_share_of_the_decoding_is_priced_by_what_was_measured_of_it() -> None:
    job = DIAGNOSES["loader-contends-gpu"][0]()
    assert job.diagnosis is not None
    with pytest.raises(MissingMeasurementError) as lacking:
        asked(job, hw_decoder_load=0.99)
    assert lacking.value.missing == MissingMeasurement(code="loader-benchmark", loader="dali-gpu", hw_decoder_load=0.99)
    assert "--hw-decoder-load 0.99" in lacking.value.command
    job.diagnosis.alternative_loaders = [replace(candidate("dali-gpu", 0.1, 17_000.0, [50.0] * 20), hw_decoder_load=0.99)]
    assert 1000 * asked(job, hw_decoder_load=0.99).estimate.after.step_s == pytest.approx(50, rel=0.02)


def test_another_diagnosis_lends_its_loader_and_its_steps() -> None:
    job = diagnosis(1600.0, busy=0.9)
    cheaper = diagnosis(3200.0, config=replace(TORCH, loader="torch-uint8"), cpu_ms={"decode": 4.5}, busy=0.9)
    assert gain(job, cheaper, loader="torch-uint8") == pytest.approx(2, rel=0.1)
    half = diagnosis(None, config=replace(TORCH, precision="fp32"), work={phase: 3 * span for phase, span in WORK.items()})
    fast, slow = asked(job, half, precision="fp32").estimate, asked(few_workers(), half, precision="fp32").estimate
    assert (fast.bottleneck, fast.has_uneven_batches) != (slow.bottleneck, slow.has_uneven_batches)
    with pytest.raises(UsageError, match="different devices"):
        asked(job, diagnosis(1600.0, ranks=2), workers=3)


def test_what_is_so_already_is_told() -> None:
    with pytest.raises(UsageError, match="--workers 1 is already set"):
        asked(few_workers(), workers=1)
    found = asked(few_workers(), workers=4, prefetch=2)
    assert found.already_set == Scenario(prefetch=2)
    out = io.StringIO()
    render_whatif(few_workers(), found, make_console(out, 80))
    assert "--prefetch 2 is the present setting, and gains nothing" in out.getvalue()


def test_an_interval_holds_its_gain_and_widens_with_what_is_not_known() -> None:
    job = few_workers()
    near, far = asked(job, workers=2).estimate, asked(job, workers=2, gpus=8, cores_per_gpu=16).estimate
    for each in (near, far):
        assert each.low < each.gain < each.high
    assert log(far.high / far.low) > log(near.high / near.low)
    assert model_error(1.0, 0.8) < model_error(1.3, 0.8) < model_error(1.3, 0.6)
    assert model_error(1.3, 1.0) < model_error(3.0, 1.0)


def test_no_gain_is_promised_beyond_what_the_device_does() -> None:
    """The model makes a step of this run 20% longer than it was: from there, more cores would seem to gain by what it missed."""
    job = load(RESULTS / "h200" / "diagnose-resnet50-dali-cpu.json")
    found = asked(job, workers=60, cores_per_gpu=64).estimate
    speeds = {record.role: fmean(timed.samples_per_s for timed in record.rounds) for record in job.records}
    most = speeds[COMPUTE_ONLY] / speeds[BASELINE]
    assert found.residual > 1.15
    assert found.gain == pytest.approx(most, rel=0.03)
    assert found.high < 1.08 * most


def test_one_rank_has_no_gradient_sync_and_from_one_nobody_knows_it() -> None:
    job = DIAGNOSES["sync-bound"][0]()
    alone = next(record for record in job.records if record.role == INDEPENDENT)
    assert asked(job, gpus=1).estimate.after.step_s == pytest.approx(alone.rounds[0].wall_s / alone.rounds[0].traces[0].steps, rel=0.05)
    alone.rounds.clear()
    assert missing(job, gpus=1).code == "step-without-sync"
    assert {each.code: each.ranks for each in asked(few_workers(ranks=1), gpus=4).estimate.assumptions}["sync-hidden"] == 4


def test_the_same_question_has_the_same_answer() -> None:
    assert asked(few_workers(), workers=3).estimate == asked(few_workers(), workers=3).estimate


def test_the_model_meets_the_run_that_it_was_told_from() -> None:
    """The kept diagnosis: two ranks on two busy cores, where no setting of the loader gains anything."""
    job = load(KEPT)
    more = asked(job, workers=2)
    assert abs(log(more.estimate.residual)) < 0.1
    assert more.estimate.low < 1 < more.estimate.high


PICTURES = replace(IMAGENET, description="image folder, 1,281,167 images", file_kind="images")
"""Other classes than ImageNet's, and not all of them JPEGs."""


@pytest.mark.parametrize(
    ("job", "change", "says"),
    [
        (few_workers, {"workers": 0, "prefetch": 4}, "--prefetch has no effect without workers"),
        (few_workers, {"loader": "synthetic"}, "synthetic is not a loader to switch to"),
        (few_workers, {"loader": "tensor"}, "tensor keeps the whole dataset on the device, but this is ImageNet folder"),
        (lambda: diagnosis(430.0, files=PICTURES), {"loader": "tensor"}, "but this is image folder, 1,281,167 images"),
        (lambda: on_processors(60.0), {"loader": "dali-gpu"}, "dali-gpu decodes on a GPU"),
        (lambda: on_processors(60.0, files=CIFAR), {"loader": "dali-cpu"}, "dali-cpu reads image folders, but this is CIFAR-10"),
        (lambda: on_processors(60.0), {"pin_memory": False}, "--pin-memory has no effect on CPU ranks"),
        (lambda: on_processors(60.0), {"pin_memory": True}, "--pin-memory has no effect on CPU ranks"),
        (few_workers, {"hw_decoder_load": 0.5}, "the loader torch does not decode on a GPU"),
        (few_workers, {"data_in_memory": False}, "--no-data-in-memory is already set"),
    ],
)
def test_what_cannot_be_is_said(job: Any, change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        asked(job(), **change)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("job", "change", "lacking"),
    [
        (lambda: diagnosis(430.0, files=PICTURES), {"loader": "dali-cpu"}, MissingMeasurement(code="loader-benchmark", loader="dali-cpu")),
        (few_workers, {"precision": "fp32"}, MissingMeasurement(code="step-in-precision", precision="fp32")),
        (far_away, {"data_in_memory": True}, MissingMeasurement(code="read-wait", loader="torch")),
    ],
)
def test_scenario_without_its_measurement_is_refused(job: Any, change: dict[str, Any], lacking: MissingMeasurement) -> None:
    assert missing(job(), **change) == lacking


def test_run_that_its_parts_do_not_explain_has_no_prediction() -> None:
    job = few_workers()
    job.records[0].rounds = [replace(timed, wall_s=2 * timed.wall_s) for timed in job.records[0].rounds]
    found = missing(job, workers=4)
    assert found.code == "unexplained-step"
    assert found.simulated_ratio is not None
    assert found.simulated_ratio < 1 / MAX_RESIDUAL


def test_a_record_that_is_no_diagnosis_has_no_answer(tmp_path: Path) -> None:
    job = few_workers()
    job.records, job.kind = job.records[1:], "run"
    with pytest.raises(UsageError, match="not a diagnosis"):
        asked(job, workers=2)
    rounds = few_workers()
    real = baseline_of(rounds)
    assert real is not None
    real.rounds = []
    with pytest.raises(UsageError, match="has no round"):
        asked(rounds, workers=2)


def test_a_curve_is_read_between_its_points_and_no_further() -> None:
    curve = LoadCurve.from_points([(1.0, 2.0), (2.0, 4.0)])
    assert [curve.at(load) for load in (0.5, 1.0, 1.5, 2.0, 3.0)] == [2.0, 2.0, 3.0, 4.0, 4.0]
    assert [curve.covers(load) for load in (0.5, 2.4, 2.6)] == [True, True, False]
    assert not curve.starts_above(0.5), "a core a thread, and nobody waits"
    assert [LoadCurve.from_points([(3.0, 2.0)]).starts_above(load) for load in (0.5, 2.0, 3.0)] == [True, True, False]


def test_the_page_fits_and_says_what_it_takes_for_granted() -> None:
    out = io.StringIO()
    render_whatif(few_workers(), asked(few_workers(), workers=4, gpus=8), make_console(out))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for words in ("--workers 4 --gpus 8: ", "images/s, measured", ", 90%)", "limit", "taken for granted", "a step among 8 takes as long"):
        assert words in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing is asked"),
        (["--workers", "2000"], "--workers cannot be '2000'"),
        (["--cores-per-gpu", "0"], "--cores-per-gpu cannot be '0'"),
        (["--loader", "torhc"], "unknown loader 'torhc'"),
        (["--precision", "fp33"], "unknown precision 'fp33'"),
        (["--loader", "dali-gpu"], "dali-gpu decodes on a GPU, but the record has CPU ranks"),
        (["--precision", "amp-bf16"], "this needs a measurement: a step in amp-bf16"),
    ],
)
def test_the_command_refuses_in_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["whatif", str(KEPT), *words])
    assert ended.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"ddpbench: error: {says}")
    assert hint.startswith("hint: ")


def test_the_command_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(few_workers(), tmp_path / "record.json")
    assert main(["whatif", str(tmp_path / "record.json"), "--workers", "4"]) == 0
    assert "--workers 4:  4.0x (" in " ".join(capsys.readouterr().out.split("\n")).replace("4: 4", "4:  4")
