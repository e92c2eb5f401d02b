"""Every bottleneck and root cause, of a diagnosis and of a single run, with its remedies."""

from __future__ import annotations

import shlex
from math import inf
from pathlib import Path
from typing import Any, get_args

import pytest
import records
from diagnoses import (
    DIAGNOSES,
    IMAGENET,
    PIL_MS,
    TORCH,
    cpu_diagnosis,
    data_wait,
    diagnosis,
    far_away,
    loader_contends_gpu,
    make_loader_stats,
)
from msgspec.structs import replace
from records import next_command

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import baseline_of, controls_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.judge import judge, judge_all
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.remedies.next_step import first_step
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.summary import summarize
from ddpbench.record.bottleneck import Bottleneck, CoresTakenByWorkers
from ddpbench.record.io import load
from ddpbench.record.loader_stats import CpuUsage
from ddpbench.record.prediction import MIN_WORTHWHILE_GAIN, Scenario
from ddpbench.record.record import Job, KernelActivity, Record
from ddpbench.record.remedy import DataInMemory, MoreCores, MoreWorkers, PersistentWorkers, Remedy
from ddpbench.record.roles import BASELINE_REPEAT, COMPUTE_ONLY, RUN, trial_role
from ddpbench.record.root_cause import (
    BlockedWorkers,
    Cause,
    ComparedWorkers,
    HandoffOrWorkers,
    IdleWorkers,
    SlowHandoff,
    TooFewCores,
    TooFewWorkers,
    TriedWorkers,
)
from ddpbench.record.verdict import Verdict

KEPT = Path(__file__).parents[3] / "results" / "h200"


def verdict_of(job: Job) -> Verdict:
    real = baseline_of(job)
    assert real is not None
    assert real.verdict is not None
    return real.verdict


def remedies_of(job: Job) -> list[Remedy]:
    real = baseline_of(job)
    assert real is not None
    return recommend(CommandBuilder.of(real, job), AnalysisInput(real, summarize(real), controls_of(job)), verdict_of(job))


@pytest.mark.parametrize("name", DIAGNOSES)
def test_diagnosis_reports_bottleneck_and_root_cause(name: str) -> None:
    make, kind, cause = DIAGNOSES[name]
    found = verdict_of(make())
    assert (found.kind, found.cause) == (kind, cause)


def test_every_bottleneck_and_cause_is_covered() -> None:
    of_scripts = {"epoch-start-bound", "load-imbalance"}  # in test_epoch_starts.py
    causes_of_scripts = {"one-by-one", "slow-sampler"}  # in test_script_loaders.py
    assert {kind for _, kind, _ in DIAGNOSES.values()} | of_scripts == {*get_args(Bottleneck)}
    assert {cause for _, _, cause in DIAGNOSES.values()} - {None} | causes_of_scripts == {*get_args(Cause)}


@pytest.mark.parametrize("name", DIAGNOSES)
def test_remedies_have_valid_commands_and_plausible_gains(name: str) -> None:
    job = DIAGNOSES[name][0]()
    real = baseline_of(job)
    assert real is not None
    given = pipeline_model(AnalysisInput(real, summarize(real), controls_of(job)))
    for cure in remedies_of(job):
        least = 0.99 if cure.scenario and (cure.scenario.workers or inf) < given.workers else MIN_WORTHWHILE_GAIN
        assert cure.gain is None or least <= cure.gain <= 1.1 * given.device_rate / given.achieved_rate
        words = shlex.split(cure.command.split("&& ")[-1])
        assert not words or words[0] in ("ddpbench", "OMP_NUM_THREADS=1", "top")
        assert ("diagnose" in words) == (verdict_of(job).kind == "inconclusive")


def test_too_few_cores_recommend_cores_and_cheaper_loaders_not_workers() -> None:
    job = DIAGNOSES["too-few-cores"][0]()
    found = verdict_of(job)
    assert isinstance(found.cause_evidence, TooFewCores)
    assert (found.cause_evidence.ranks, found.cause_evidence.usable_cores) == (4, 16.0)
    assert found.cause_evidence.cores_needed == pytest.approx(53.5), "as the page says below"
    cores, *loaders = remedies_of(job)
    assert isinstance(cores, MoreCores)
    assert (cores.cores, cores.workers, cores.is_handoff_bound) == (pytest.approx(53.5, abs=0.05), 61, False)
    assert [cure.scenario for cure in loaders] == [Scenario(loader=name) for name in ("dali-gpu", "torch-uint8", "dali-cpu")]


def test_remedies_are_sorted_by_gain_after_the_root_cause() -> None:
    too_few_cores = remedies_of(load(KEPT / "diagnose-resnet50-dali-cpu.json"))
    gains = [cure.gain or 0.0 for cure in too_few_cores]
    assert len(gains) > 1
    assert gains == sorted(gains, reverse=True)
    too_few_workers = remedies_of(load(KEPT / "diagnose-resnet50-2gpu.json"))
    first = first_step(too_few_workers)
    assert first is not None
    assert first.command.endswith("--workers 8,14")
    gains = [cure.gain or 0.0 for cure in too_few_workers]
    assert gains[0] < gains[1]
    assert gains[1:] == sorted(gains[1:], reverse=True)


def test_recommended_workers_are_limited_by_cores_or_device() -> None:
    job = DIAGNOSES["too-few-workers"][0]()
    more = verdict_of(job).cause_evidence
    assert isinstance(more, TooFewWorkers)
    assert (more.more_workers, more.limited_by, more.usable_cores) == (15, "cores", 64.0)
    assert more.more_samples_per_s == pytest.approx(3260, abs=5)
    assert next_command(verdict_of(job)).endswith(" --workers 2,15")
    enough = diagnosis(800.0, config=replace(TORCH, workers=1), cpu_ms={"read": 0.05, "decode": 0.8, "augment": 0.3}, busy=0.1)
    assert verdict_of(enough).cause == "too-few-workers"
    more = verdict_of(enough).cause_evidence
    assert isinstance(more, TooFewWorkers)
    assert (more.more_workers, more.limited_by) == (8, "device")


def test_oversubscribed_workers_recommend_fewer_workers() -> None:
    assert next_command(verdict_of(DIAGNOSES["oversubscribed"][0]())).endswith(" --workers 16,3")


def test_data_in_memory_is_recommended_only_if_it_fits() -> None:
    job = DIAGNOSES["slow-storage"][0]()
    assert next_command(verdict_of(job)).startswith("cp -r /data/imagenet /dev/shm/ddpbench-data && ddpbench ")
    assert job.diagnosis is not None
    job.diagnosis.node_states = [replace(each, shm_free_bytes=200 * 10**9) for each in job.diagnosis.node_states]
    [cure] = [cure for cure in remedies_of(job) if isinstance(cure, DataInMemory)]
    assert (cure.command, cure.fits, cure.shm_free_bytes) == ("", False, 200e9), "workers hand their batches over there, too"
    assert cure.dataset_bytes == pytest.approx(141e9, rel=0.01)


def test_data_in_memory_has_no_command_on_several_nodes() -> None:
    job = diagnosis(800.0, wall_ms={"read": 30.0}, place=records.environment(4, nodes=2, usable_cores=32.0))
    [cure] = [cure for cure in remedies_of(job) if isinstance(cure, DataInMemory)]
    assert (cure.command, cure.fits) == ("", True)


def test_idle_workers_give_no_predicted_gain_for_cheaper_loaders() -> None:
    """Idle workers: the gain of cheaper samples cannot be computed from their cost."""
    assert {cure.gain for cure in remedies_of(DIAGNOSES["slow-handoff"][0]()) if cure.command} == {None}


@pytest.mark.parametrize(
    ("images", "starts_anew", "set_up_s", "most"),
    [
        (13_760, True, 0.0, 1.29),  # 1.8 s of start-up per epoch of 8 s (4 ranks, 430 images/s each)
        (13_760, True, 1.0, 1.11),  # finding the images happens once
        (1_720, True, 0.0, 13.4),  # start-up exceeds the epoch of one second: limited by the device
        (13_760, False, 0.0, None),
        (1_281_167, True, 0.0, None),
    ],
)
def test_persistent_workers_are_recommended_if_epochs_are_short(
    images: int, starts_anew: bool, set_up_s: float, most: float | None
) -> None:
    own = replace(IMAGENET, loader="my_data:train", num_samples=images, respawns_workers=starts_anew, setup_s=set_up_s)
    job = diagnosis(430.0, config=replace(TORCH, loader="my_data:train", workers=2), files=own, busy=0.2)
    gains = [cure.max_gain for cure in remedies_of(job) if isinstance(cure, PersistentWorkers)]
    assert gains == ([pytest.approx(most, rel=0.005)] if most else [])


def test_user_loader_workers_are_counted_as_started_without_workers_flag() -> None:
    """The default number of workers is requested, and the loader starts two."""
    own = replace(IMAGENET, loader="my_data:train", workers=2)
    job = diagnosis(430.0, config=replace(TORCH, loader="my_data:train", workers=8), files=own, busy=0.2)
    heeding = diagnosis(430.0, config=replace(TORCH, loader="my_data:train", workers=2), files=own, busy=0.2)
    assert verdict_of(job).cause_evidence == verdict_of(heeding).cause_evidence
    (cure,) = [each for each in remedies_of(job) if isinstance(each, MoreWorkers)]
    assert (cure.workers, cure.command, cure.scenario) == (15, "", None)
    assert not any("--workers" in each.command or "--prefetch" in each.command for each in remedies_of(job))
    (heeded,) = [each for each in remedies_of(heeding) if isinstance(each, MoreWorkers)]
    assert heeded.command.endswith("--workers 2,15")


def test_user_loader_without_workers_recommends_dataloader_workers() -> None:
    own = replace(IMAGENET, loader="my_data:train", workers=0)
    job = diagnosis(430.0, config=replace(TORCH, loader="my_data:train", workers=8), files=own, busy=0.2)
    assert "dataloader-with-workers" in [cure.code for cure in remedies_of(job)]


def test_command_after_diagnosis_names_the_loader() -> None:
    """Without --loader a run would train on synthetic data."""
    job = DIAGNOSES["too-few-workers"][0]()
    assert " --loader torch " in CommandBuilder.of(job.records[0], job).command()


@pytest.mark.parametrize(("share", "cause"), [(0.9, "handoff"), (0.45, None)])
def test_handoff_is_the_cause_only_if_most_of_the_wait(share: float, cause: Cause | None) -> None:
    given = 900.0
    handoff = {"handoff_ms": share * data_wait(256, given)}
    found = verdict_of(diagnosis(given, stats=handoff, busy=0.6))
    assert found.cause == cause
    assert isinstance(found.cause_evidence, SlowHandoff if cause else HandoffOrWorkers)
    assert found.cause_evidence.handoff_fraction == pytest.approx(share, rel=0.05)


def test_workers_that_load_all_the_time_are_no_slow_handoff() -> None:
    """A batch arrives late after its worker has finished it: pure Python code of the next one keeps the worker's other threads waiting."""
    given = 800.0
    stats = {"handoff_ms": 0.9 * data_wait(256, given)}
    found = verdict_of(diagnosis(given, stats=stats, config=replace(TORCH, workers=4), wall_ms={"decode": 4.4}, busy=0.4))
    assert found.kind == "data-bound"
    assert found.cause == "too-few-workers"


def test_trainer_waiting_for_a_core_is_not_slow_handoff() -> None:
    handoff = {"handoff_ms": 0.7 * data_wait(256, 320.0)}
    assert verdict_of(diagnosis(320.0, cores=16.0, config=replace(TORCH, workers=3), stats=handoff, busy=0.96)).cause == "too-few-cores"


def test_idle_workers_on_idle_cores_are_not_too_few() -> None:
    found = verdict_of(diagnosis(900.0, stats={"handoff_ms": 1.0, "head_of_line_fraction": 0.0}, busy=0.5))
    assert (found.kind, found.cause) == ("data-bound", None)
    assert found.cause_evidence == IdleWorkers(busy_fraction=pytest.approx(0.55, abs=0.005))


def test_blocked_workers_are_too_few_on_busy_cores() -> None:
    assert verdict_of(far_away(cores=8.0, busy=0.2, others=6.4)).cause == "too-few-workers"


@pytest.mark.parametrize(("sharing", "cause"), [(1.0, "too-few-workers"), (2.0, None)])
def test_more_workers_help_only_if_ranks_do_not_share_storage(sharing: float, cause: Cause | None) -> None:
    found = verdict_of(far_away(sharing))
    assert (found.kind, found.cause) == ("data-bound", cause)
    if cause is None:
        assert isinstance(found.cause_evidence, BlockedWorkers)
        assert found.cause_evidence.single_rank_speedup == pytest.approx(sharing, rel=0.05)


@pytest.mark.parametrize(("gain", "cause"), [(2.6, "too-few-workers"), (1.2, None), (0.9, None)])
def test_blocked_workers_are_too_few_if_more_are_faster_in_a_trial(gain: float, cause: Cause | None) -> None:
    """Three times as many workers gain 3x if they share nothing, and 1x if they share what they wait for."""
    job = far_away(sharing=2.0)
    real = job.records[0]
    faster = [replace(timed, wall_s=timed.wall_s / gain) for timed in real.rounds]
    job.records += [replace(real, role=BASELINE_REPEAT), replace(real, role=trial_role(Scenario(workers=12)), rounds=faster)]
    judge_all(job)
    found = verdict_of(job)
    assert (found.kind, found.cause, found.is_cause_probable) == ("data-bound", cause, False)
    assert isinstance(found.cause_evidence, TriedWorkers)
    assert (found.cause_evidence.workers, found.cause_evidence.more_workers) == (4, 12)
    assert found.cause_evidence.gain == pytest.approx(gain)


@pytest.mark.parametrize(("gain", "cause"), [(2.6, "too-few-workers"), (1.05, None)])
def test_idle_workers_are_too_few_if_more_load_faster_alone(gain: float, cause: Cause | None) -> None:
    """They start again in every epoch, for example."""
    job = diagnosis(900.0, stats={"handoff_ms": 1.0, "head_of_line_fraction": 0.0}, busy=0.5)
    assert job.diagnosis is not None
    job.diagnosis.all_cores_loader_benchmarks = [
        replace(each, workers=3 * TORCH.workers, elapsed_s=each.elapsed_s / gain) for each in job.diagnosis.loader_benchmarks
    ]
    judge_all(job)
    found = verdict_of(job)
    assert (found.kind, found.cause) == ("data-bound", cause)


@pytest.mark.parametrize(("gain", "cause"), [(2.6, "too-few-workers"), (1.2, None)])
def test_blocked_workers_are_too_few_if_more_load_faster_alone(gain: float, cause: Cause | None) -> None:
    job = far_away(sharing=2.0)
    assert job.diagnosis is not None
    job.diagnosis.all_cores_loader_benchmarks = [
        replace(each, workers=12, elapsed_s=each.elapsed_s / gain) for each in job.diagnosis.loader_benchmarks
    ]
    judge_all(job)
    found = verdict_of(job)
    assert found.cause == cause
    if cause:
        assert isinstance(found.cause_evidence, TriedWorkers)
        assert (found.cause_evidence.more_workers, found.cause_evidence.is_loader_only) == (12, True)
        assert found.cause_evidence.gain == pytest.approx(gain)


@pytest.mark.parametrize(("gain", "cause"), [(1.3, "too-few-workers"), (0.85, None)])
def test_workers_are_not_too_few_if_a_trial_with_more_is_no_faster(gain: float, cause: Cause | None) -> None:
    job = DIAGNOSES["too-few-workers"][0]()
    real = job.records[0]
    tried = [replace(timed, wall_s=timed.wall_s / gain) for timed in real.rounds]
    job.records += [replace(real, role=BASELINE_REPEAT), replace(real, role=trial_role(Scenario(workers=12)), rounds=tried)]
    judge_all(job)
    found = verdict_of(job)
    assert (found.kind, found.cause) == ("data-bound", cause)
    assert isinstance(found.cause_evidence, TooFewWorkers if cause else ComparedWorkers)


def test_trial_that_varies_does_not_decide_on_blocked_workers() -> None:
    job = far_away(sharing=2.0)
    real = job.records[0]
    varied = [replace(timed, wall_s=timed.wall_s / gain) for timed, gain in zip(real.rounds, (0.5, 4.0, 0.9, 4.0, 1.0), strict=True)]
    job.records += [replace(real, role=BASELINE_REPEAT), replace(real, role=trial_role(Scenario(workers=12)), rounds=varied)]
    judge_all(job)
    assert isinstance(verdict_of(job).cause_evidence, BlockedWorkers)


def test_shared_storage_is_unknown_without_single_rank_benchmark() -> None:
    job = far_away()
    judge(job.records[0])
    found = job.records[0].verdict
    assert found is not None
    assert (found.kind, found.cause) == ("data-bound", None)
    assert isinstance(found.cause_evidence, BlockedWorkers)
    assert found.cause_evidence.single_rank_speedup is None


def test_interference_absent_from_the_run_is_not_a_bottleneck() -> None:
    """The background loader slows training on synthetic data by 51%; the run is not slowed."""
    slowed = {"forward": 31.0, "backward": 61.0}
    job = cpu_diagnosis(None, work={"forward": 20.0, "backward": 40.0, "optimizer": 2.0}, background=slowed, cpu_ms={"decode": 3.0})
    assert verdict_of(job).kind == "compute-bound"


def test_small_noisy_neighbour_does_not_hide_too_few_cores() -> None:
    wall_ms = {stage: 1.5 * span for stage, span in PIL_MS.items()}
    found = verdict_of(diagnosis(300.0, cores=16.0, config=replace(TORCH, workers=3), wall_ms=wall_ms, busy=0.8, others=2.5))
    assert (found.kind, found.cause) == ("data-bound", "too-few-cores")


def test_inconclusive_diagnosis_suggests_longer_time_limit() -> None:
    assert next_command(verdict_of(DIAGNOSES["competing"][0]())).endswith(
        " diagnose resnet50 --precision amp-fp16 --loader torch --data-dir /data/imagenet --workers 15 --gpus 4 --time-limit 350"
    )


def test_control_run_without_rounds_is_ignored() -> None:
    job = DIAGNOSES["loader-contends-cpu"][0]()
    job.records[-1].rounds = []
    around = controls_of(job)
    assert around.compute_only is not None
    assert around.loader_in_background is None


def test_loader_contention_in_every_round_is_reported_despite_noise() -> None:
    found = loader_contends_gpu(longer=(1.0, 1.08, 0.95, 1.05, 0.97)).records[0].verdict
    assert found is not None
    assert found.kind == "loader-contends-gpu"


NOISY_ROUNDS = (1.0, 1.3, 0.8, 1.2, 0.9)


def launch_bound_job(lead_ms: float) -> Job:
    return diagnosis(None, longer=NOISY_ROUNDS, lead_ms=lead_ms, kernel_activity=KernelActivity(step_ms=62.4, kernel_ms=40.0))


def test_profiler_window_is_as_certain_as_the_rounds_around_it() -> None:
    """The profiled window is one measurement and varies like a round."""
    unsteady = launch_bound_job(lead_ms=40.0)
    device = next(record for record in unsteady.records if record.role == COMPUTE_ONLY)
    device.rounds = [replace(timed, wall_s=times * timed.wall_s) for timed, times in zip(device.rounds, NOISY_ROUNDS, strict=True)]
    judge_all(unsteady)
    assert (verdict_of(unsteady).kind, verdict_of(unsteady).is_probable) == ("launch-bound", True)
    steady = DIAGNOSES["launch-bound"][0]()
    assert (verdict_of(steady).kind, verdict_of(steady).is_probable) == ("launch-bound", False)


def alone(given: float | None, *, cores: float = 64.0, workers: int = 15, busy: float | None = 0.3, **cost: Any) -> Record:
    """A judged single run on four GPUs, without CPU usage if ``busy`` is None."""
    job = diagnosis(given, cores=cores, config=replace(TORCH, workers=workers), busy=busy or 0.0, **cost)
    record = job.records[0]
    if busy is None:
        unwatched = ([replace(trace, cpu_usage=None) for trace in timed.traces] for timed in record.rounds)
        record.rounds = [replace(timed, traces=traces) for timed, traces in zip(record.rounds, unwatched, strict=True)]
    record.role = RUN
    judge(record)
    return record


def verdict_codes(record: Record) -> tuple[str, str | None, str]:
    assert record.verdict is not None
    return record.verdict.kind, record.verdict.cause, next_command(record.verdict)


def test_single_run_reports_causes_shown_by_its_workers() -> None:
    start = "ddpbench resnet50 --precision amp-fp16"
    cheap = {"read": 0.1, "decode": 2.4, "augment": 1.6, "collate": 0.5}
    assert verdict_codes(alone(430.0, workers=2, cpu_ms=cheap, busy=0.2)) == (
        "data-bound",
        "too-few-workers",
        f"{start} --loader torch --data-dir /data/imagenet --gpus 4 --workers 2,15",
    )
    assert verdict_codes(alone(320.0, cores=16.0, workers=3, busy=0.96)) == (
        "data-bound",
        "too-few-cores",
        f"{start} --data-dir /data/imagenet --workers 3 --gpus 4 --loader torch,dali-gpu",
    )
    assert verdict_codes(alone(800.0, wall_ms={"read": 30.0}))[:2] == ("data-bound", "storage")


def test_single_run_without_cause_suggests_diagnose() -> None:
    record = alone(320.0, cores=16.0, workers=3, busy=None, cpu_ms={})
    assert verdict_codes(record) == (
        "data-bound",
        None,
        "ddpbench diagnose resnet50 --precision amp-fp16 --loader torch --data-dir /data/imagenet --workers 3 --gpus 4",
    )


def test_cpu_ranks_sharing_cores_with_workers_are_contended() -> None:
    """Each rank computes with 0.6 of a core, and its workers use the rest."""
    config = replace(records.cpu_run().config, loader="torch", data_dir="/data/imagenet", workers=1)
    step_s, steps = 0.1045, 20
    images, wall_s = 8 * steps, step_s * steps
    trace = {
        "loader_stats": make_loader_stats(images, {"decode": 4.0, "augment": 1.0}),
        "cpu_s": 0.98 * wall_s,
        "cpu_usage": CpuUsage(num_cores=2, busy_s=1.97 * wall_s, wall_s=wall_s),
    }
    phases = {"data": 0.1, "forward": 34.0, "backward": 66.0, "optimizer": 4.0}
    record = records.cpu_run(ranks=[phases] * 2, config=config, traces={rank: trace for rank in range(2)})
    judge(record)
    assert record.verdict is not None
    assert record.verdict.kind == "loader-contends-cpu"
    assert isinstance(record.verdict.evidence, CoresTakenByWorkers)
    assert (record.verdict.evidence.needed_cores, record.verdict.evidence.usable_cores) == (1.0, 2.0)
    assert 0 < record.verdict.evidence.rank_cores < 1
    assert 0 < record.verdict.evidence.worker_cores < 1
