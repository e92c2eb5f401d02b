"""Predictions compared with their measured trials, on pages and in a real diagnosis."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import records
from diagnoses import DIAGNOSES, TORCH, benchmark_of, diagnosis, with_layers
from launches import SUPPORT_ENV, TORCHRUN, only_job
from msgspec.structs import replace
from records import BUSY
from training import world_of_one

from ddpbench.analysis.command import is_runnable
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.judge import judge_all, judge_remedies
from ddpbench.analysis.remedies.outcomes import best_remedy, outcomes
from ddpbench.analysis.remedies.predict import predict_remedies, top_candidates
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.bench.diagnose.context import DiagnosisContext
from ddpbench.bench.diagnose.loaders import LoaderFactories
from ddpbench.bench.diagnose.verify import (
    TRIALS_KEY,
    expected_time_s,
    plan_trials,
    predict_fast_after_trials,
    verify_predictions,
)
from ddpbench.bench.job_spec import JobContext
from ddpbench.bench.journal import Journal
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import Config
from ddpbench.record.prediction import FAST, MissingMeasurement, Prediction, Scenario
from ddpbench.record.record import Fault, Job
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, trial_role
from ddpbench.record.roofline import FusedWork
from ddpbench.report.console import make_console
from ddpbench.report.pages.diagnosis import render_diagnosis
from ddpbench.report.progress import NullProgress


def more_cores_of(job: Job) -> Scenario:
    """The recommended scenario with more cores, which cannot be tried."""
    case, run = diagnosed_input(job)
    assert case.record.verdict is not None
    changes = [cure.scenario for cure in recommend(run, case, case.record.verdict)]
    return next(change for change in changes if change and change.cores_per_gpu)


def lacking(loader: str) -> MissingMeasurement:
    return MissingMeasurement(code="loader-benchmark", loader=loader)


def tried(waits_ms: dict[str, float], predicted: dict[str, tuple[float, float, float]]) -> Job:
    """A diagnosis with trials: data wait per step by role (the unchanged setting first), and predictions by workers."""
    cost = {"read": 0.1, "decode": 2.4, "augment": 1.6, "collate": 0.5}
    job = diagnosis(430.0, config=replace(TORCH, workers=2), cpu_ms=cost, busy=0.2)
    assert job.diagnosis is not None
    real = baseline_of(job)
    assert real is not None
    for role, wait in waits_ms.items():
        arm = records.record([{**BUSY, "data": wait}] * 4, config=real.config, role=role, environment=real.environment)
        job.records.append(arm)
    job.diagnosis.predictions = [
        Prediction(scenario=Scenario(workers=int(words)), gain=gain, low=low, high=high) for words, (gain, low, high) in predicted.items()
    ]
    job.diagnosis.predictions += [
        Prediction(scenario=more_cores_of(job), gain=9.0, low=7.0, high=11.0),
        Prediction(scenario=Scenario(loader="dali-gpu"), missing_measurement=lacking("dali-gpu")),
    ]
    judge_all(job)
    return job


def page(job: Job, verbose: bool = False) -> str:
    assert job.diagnosis is not None
    judge_remedies(job, job.diagnosis)
    out = io.StringIO()
    render_diagnosis(job, make_console(out), Path("results/runs/record.json"), verbose=verbose)
    return out.getvalue()


TWICE = {BASELINE_REPEAT: 100.0, trial_role(Scenario(workers=4)): 20.0, trial_role(Scenario(workers=3)): 100.0}


def test_prediction_is_compared_with_its_interleaved_trial() -> None:
    job = tried(TWICE, {"4": (2.2, 2.0, 2.5), "3": (1.5, 1.3, 1.7)})
    cores, four, three, dali = outcomes(job)
    assert four.measured is not None
    assert four.measured.center == pytest.approx(2.2, abs=0.25)
    assert (four.is_inside, four.is_gain) == (True, True)
    assert (three.is_inside, three.is_gain) == (False, False)
    assert cores.measured is dali.measured is None
    assert not is_runnable(cores.scenario)
    assert best_remedy(outcomes(job)) == four


def test_page_ends_with_the_best_setting_and_its_savings() -> None:
    shown = page(tried(TWICE, {"4": (2.2, 2.0, 2.5), "3": (1.5, 1.3, 1.7)}))
    assert max(len(line) for line in shown.splitlines()) <= 80
    text = " ".join(shown.split())
    assert re.search(r"x \([\d.]+ to [\d.]+\), as predicted", text)
    assert ", less than predicted, no gain" in text
    assert "cannot be tried here" in text
    last = text.partition(" use ")[2].partition("step time")[0]
    assert "--workers 4" in last
    assert "images/s more" in last
    assert "of 96 GPU-hours/day" in last


def test_page_keeps_the_setting_if_nothing_gained() -> None:
    shown = page(tried({BASELINE_REPEAT: 100.0, trial_role(Scenario(workers=3)): 101.0}, {"3": (1.5, 1.3, 1.7)}))
    assert "  use   the current settings: no trial is measurably faster" in shown


def test_failed_trial_is_reported_and_the_others_count() -> None:
    job = tried(TWICE, {"4": (2.2, 2.0, 2.5), "3": (1.5, 1.3, 1.7)})
    [arm] = [record for record in job.records if record.role == trial_role(Scenario(workers=4))]
    arm.status, arm.fault = "failed", Fault(message="no room for so many workers, on rank 1 (node-01)")
    _, four, three, _ = outcomes(job)
    assert four.measured is None
    assert four.failure == "no room for so many workers, on rank 1 (node-01)"
    assert three.measured is not None
    assert best_remedy(outcomes(job)) is None
    shown = page(job)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "failed: no room for so many workers, on rank 1 (node-01)" in " ".join(shown.split())


def test_prediction_without_trial_is_reported_once_as_not_tried() -> None:
    shown = " ".join(page(tried({BASELINE_REPEAT: 100.0}, {"4": (2.2, 2.0, 2.5)}), verbose=True).split())
    assert "remedies predicted (90%) measured (95%)" in shown
    assert shown.count("--workers 4 2.2x (2.0 to 2.5) not tried") == 1
    assert re.search(r"9\.0x \(7\.0 to 11\.0\) cannot be tried here", shown)


def test_remedy_reason_is_printed_only_if_verbose() -> None:
    job, reason = diagnosis(320.0, cores=16.0, config=replace(TORCH, workers=3), busy=0.96), "threads instead of worker processes"
    judge_all(job)
    assert reason not in " ".join(page(job).split())
    assert reason in " ".join(page(job, verbose=True).split())


def test_data_bound_page_is_undecided_if_nothing_can_be_tried() -> None:
    job = tried({}, {})
    assert "use undecided: no remedy could be tried here" in " ".join(page(job).split())
    assert "use " not in page(tried({}, {"4": (2.2, 2.0, 2.5)})).rpartition(".json")[2], "no time was left for trials"


def test_measured_loss_is_reported() -> None:
    shown = page(tried({BASELINE_REPEAT: 100.0, trial_role(Scenario(workers=3)): 160.0}, {"3": (1.5, 1.3, 1.7)}))
    assert ", a loss" in " ".join(shown.split())


def test_every_remedy_has_a_prediction_or_a_missing_measurement() -> None:
    job = diagnosis(320.0, cores=16.0, config=replace(TORCH, workers=3), busy=0.96)
    found = {each.scenario.flag_text: each for each in predict_remedies(job)}
    assert found["--loader torch-uint8"].missing_measurement == lacking("torch-uint8")
    cores = next(each for words, each in found.items() if "--cores-per-gpu" in words)
    assert cores.gain is not None
    assert cores.gain > 10


def test_no_workers_is_predicted_if_workers_contend_with_trainers() -> None:
    """An image takes 4 ms of CPU during training and 2 ms in the loader benchmark."""
    job = DIAGNOSES["loader-contends-cpu"][0]()
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [benchmark_of(rank, 450.0, 8, {"decode": 2.0}) for rank in range(2)]
    job.diagnosis.single_rank_loader_benchmark = job.diagnosis.loader_benchmarks[0]
    judge_all(job)
    [without] = [each for each in predict_remedies(job) if each.scenario == Scenario(workers=0)]
    assert without.gain == pytest.approx(1.2, abs=0.06)
    assert "trainer-loads-as-fast" in {each.code for each in without.assumptions}


def test_cuda_graphs_are_predicted_only_with_kernel_activity() -> None:
    job = DIAGNOSES["launch-bound"][0]()
    for record in job.records:  # with an engine that --fast cannot capture
        record.config = replace(record.config, engine="accelerate")
    shown = " ".join(page(job).split())
    assert "the loader keeps up: data wait is" in shown
    assert re.search(r"--compile reduce-overhead [\d.]+x \([\d.]+ to [\d.]+\)", shown)
    job.records[1].kernel_activity = None
    assert re.search(r"--compile reduce-overhead - not tried .*?not measured: ", " ".join(page(job, verbose=True).split()))


def test_fast_is_tried_in_a_launch_bound_training_before_its_gain_is_known(tmp_path: Path) -> None:
    """A profiler, with which its gain is predicted, would slow down the launches of the baseline that it is compared with."""
    job = DIAGNOSES["launch-bound"][0]()
    assert job.diagnosis is not None
    [fast] = predict_remedies(job)
    assert (fast.scenario, fast.gain) == (Scenario(fast=True), None)
    assert top_candidates([fast], is_runnable, lambda scenario: False) == []
    assert top_candidates([fast], is_runnable, lambda scenario: scenario == FAST) == [fast]
    job.diagnosis.predictions, config = [fast], job.records[0].config
    assert "use the current settings" not in " ".join(page(job).split())
    for role, backward_ms in ((BASELINE_REPEAT, 60.0), (trial_role(fast.scenario), 20.0)):
        job.records.append(records.record([{**BUSY, "backward": backward_ms}] * 2, config=config, role=role))
    assert re.search(r"--fast - [\d.]+x \(.*?; tried without a prediction", " ".join(page(job, verbose=True).split()))
    with_layers(job, FusedWork(replaced_ms=20.0, num_bytes=40e9))
    predict_fast_after_trials(Journal(job, tmp_path / "record.json"))
    [late] = job.diagnosis.predictions
    assert late.gain is not None
    assert late.gain > 1.5
    assert re.search(r"--fast - [\d.]+x \(.*?predicted after the trial: [\d.]+x \(", " ".join(page(job, verbose=True).split()))
    job.records[-1].status, job.records[-1].fault = "failed", Fault(message="cannot be captured")
    job.diagnosis.predictions = [fast]
    assert "failed: cannot be captured" in " ".join(page(job).split())


def wanted_s(batch_s: float, cures: int) -> float:
    """Expected time of ``cures`` trials with 8 workers and ``batch_s`` per batch."""
    scene = DiagnosisContext(None, Config(workload="resnet50"), replace(TORCH, workers=8), LoaderFactories(), 2.0, batch_s)  # type: ignore[arg-type]
    promised = [Prediction(scenario=Scenario(workers=8 + more), gain=1.5) for more in range(1, 1 + cures)]
    return expected_time_s(plan_trials(scene, promised, available_s=55.0, round_s=1.5, warmup_s=3.0, never_shortened=False))


def test_number_of_trials_is_limited_by_time() -> None:
    assert wanted_s(0.05, cures=2) < 55
    assert wanted_s(0.3, cures=1) < 55 < wanted_s(0.3, cures=2)
    assert wanted_s(2.0, cures=1) > 55, "the first batch takes 16 s"


def test_trial_rounds_are_complete_or_reported_as_short() -> None:
    scene = DiagnosisContext(None, Config(workload="resnet50"), replace(TORCH, workers=8), LoaderFactories(), 2.0, 0.3)  # type: ignore[arg-type]
    promised = [Prediction(scenario=Scenario(workers=12), gain=1.5)]
    whole, short = (
        [
            contender.round_plan.steps_per_round(0.3, contender.config.workers)
            for contender in plan_trials(scene, promised, 55.0, 1.5, 3.0, complete)
        ]
        for complete in (True, False)
    )
    assert whole == [32, 48]
    assert short < whole
    shown = " ".join(page(tried(TWICE, {"4": (2.2, 2.0, 2.5)})).split())
    assert "short" not in shown
    few = tried(TWICE, {"4": (2.2, 2.0, 2.5)})
    for record in few.records:
        if record.role == BASELINE_REPEAT:
            record.rounds = [replace(timed, traces=[replace(trace, steps=5) for trace in timed.traces]) for timed in record.rounds]
    assert "; 3 batches missing" in " ".join(page(few, verbose=True).split())


def test_wide_measured_interval_is_inconclusive() -> None:
    job = tried(TWICE, {"4": (2.2, 2.0, 2.5)})
    [arm] = [record for record in job.records if record.role == trial_role(Scenario(workers=4))]
    arm.rounds = [replace(timed, wall_s=timed.wall_s * times) for timed, times in zip(arm.rounds, (0.6, 1.6, 0.7, 1.5, 1.0), strict=True)]
    [four] = [each for each in outcomes(job) if each.scenario == Scenario(workers=4)]
    assert (four.is_wide, four.is_inside) == (True, None)
    assert re.search(r"[\d.]+x to [\d.]+x(, a gain)?, too wide", " ".join(page(job).split()))


def test_all_ranks_pass_the_same_progress_marks_in_trials(tmp_path: Path) -> None:
    """Rank 0, which predicts, and a rank that waits for the list of trials."""
    job, passed = diagnosis(430.0), []
    job.records[0].rounds.clear()
    for journal in (Journal(job, tmp_path / "record.json"), None):
        world, pulse = world_of_one(), ProgressMarker(60.0)
        world.store.set(TRIALS_KEY, "[]")
        ground = JobContext([TORCH], world, pulse, journal, NullProgress(), perf_counter())
        assert verify_predictions(DiagnosisContext(ground, Config(workload="resnet50"), TORCH, LoaderFactories(), 2.0), 0.0, 1.5, 3.0)
        passed.append((pulse.marks_passed, pulse.phase))
    assert passed[0] == passed[1] == (1, "predicting")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_diagnosis_tries_its_predictions(launch: Callable[..., Any], results: Path) -> None:
    """One worker per rank; samples take 12 ms of latency with unlimited concurrency."""
    loader = ["--loader", "situations.spoilt:far_away", "-j", "1", "--device", "cpu"]
    words = ["diagnose", "situations.workloads:light_cifar", *loader, "--time-limit", "60", "-o", str(results)]
    done = launch([*TORCHRUN, *words], env=SUPPORT_ENV, timeout=200)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    assert job.diagnosis is not None
    predicted = [each.scenario for each in job.diagnosis.predictions if each.gain]
    roles = [record.role for record in job.records]
    assert roles[0] == BASELINE
    assert BASELINE_REPEAT in roles
    assert {role.scenario for role in roles if role.kind == "trial"} <= set(predicted)
    [more, *_] = [each for each in outcomes(job) if each.measured is not None]
    assert more.measured is not None
    assert more.measured.center > 1.3
    assert "  use   " in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_failed_trial_on_one_rank_does_not_end_diagnosis(launch: Callable[..., Any], results: Path) -> None:
    why, loader = "ValueError: too bright", ["--loader", "situations.spoilt:dark_for_one_worker", "-j", "1", "--device", "cpu"]
    words = ["diagnose", "situations.workloads:dim_cifar", *loader, "--time-limit", "60", "-o", str(results)]
    done = launch([*TORCHRUN, *words], env=SUPPORT_ENV, timeout=200)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    failed = [record for record in job.records if record.fault]
    assert failed
    assert all(record.role.scenario and record.role.scenario.workers for record in failed)
    assert failed[0].fault is not None
    assert failed[0].fault.message.startswith(f"{why}, on rank 1 (")
    assert f"failed: {why}" in " ".join(done.stdout.split())
    assert next(record for record in job.records if record.role == BASELINE_REPEAT).rounds
