"""Edge cases of root causes: evidence that names one, and evidence that must not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import records
from diagnoses import DIAGNOSES, SMALL, STEPS, TORCH, WORK, cpu_diagnosis, diagnosis, make_loader_stats
from msgspec.structs import replace

from ddpbench.analysis.controls import baseline_of, controls_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.judge import judge, judge_all
from ddpbench.analysis.node_cpu_usage import busiest_node
from ddpbench.analysis.pipeline.costs import LoaderCost
from ddpbench.analysis.pipeline.interference import find_interference
from ddpbench.analysis.pipeline.model import MIN_WAIT_MS, PipelineModel, pipeline_model
from ddpbench.analysis.pipeline.part_rates import pipeline_rates
from ddpbench.analysis.summary import summarize
from ddpbench.data.batch_timing import MIN_WAIT_S
from ddpbench.record.bottleneck import BatchPreparation, CoresTakenByOthers, DecodesOnDevice, LoaderInBackground, TooShort
from ddpbench.record.loader_stats import CpuUsage
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT
from ddpbench.record.root_cause import (
    CpuQuota,
    DominantStage,
    EnoughWorkers,
    SharedBusyCores,
    TooFewCores,
    TooFewWorkers,
    UndecidedCause,
)
from ddpbench.record.trace import Trace
from ddpbench.record.verdict import Verdict
from ddpbench.report.messages.verdict import explain_verdict

CHEAP = {"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1}


def inputs_of(job: Job) -> AnalysisInput:
    real = baseline_of(job)
    assert real is not None
    return AnalysisInput(real, summarize(real), controls_of(job))


def change_traces(record: Record, changes: Callable[[Trace], dict[str, Any]]) -> None:
    """Change every trace of all rounds."""
    record.rounds = [replace(timed, traces=[replace(trace, **changes(trace)) for trace in timed.traces]) for timed in record.rounds]


def verdict_of(job: Job) -> Verdict:
    found = inputs_of(job).record.verdict
    assert found is not None
    return found


def pipeline_of(job: Job) -> PipelineModel:
    return pipeline_model(inputs_of(job))


@pytest.mark.parametrize("cores", [4.0, 2.0])
def test_trainers_on_all_cores_leave_no_core_bound_rate(cores: float) -> None:
    job = diagnosis(300.0, cores=cores, config=replace(TORCH, workers=3), busy=0.97)
    assert (pipeline_of(job).core_bound_rate, pipeline_rates(inputs_of(job), pipeline_of(job)).core_bound) == (None, None)
    found = verdict_of(job)
    assert (found.kind, found.cause) == ("data-bound", "too-few-cores")
    assert isinstance(found.cause_evidence, TooFewCores)
    assert (found.cause_evidence.core_samples_per_s, found.cause_evidence.trainer_cores) == (None, 4)
    assert found.cause_evidence.cores_needed == pytest.approx(53.5)
    assert found.cause_evidence.samples_per_s_per_core == pipeline_of(job).rate_per_core
    assert verdict_of(diagnosis(300.0, cores=cores, busy=0.1)).cause is None, "the rate of idle cores is unknown"


@pytest.mark.parametrize("job", [lambda: diagnosis(900.0, cores=16.0), lambda: cpu_diagnosis(None, busy=0.9)], ids=["GPUs", "CPU ranks"])
def test_one_more_core_for_each_rank_adds_what_it_loads(job: Callable[[], Job]) -> None:
    given = pipeline_of(job())
    cost = given.all_cores_sample_cpu_s
    assert cost is not None
    more = dataclasses.replace(given, usable_cores=given.usable_cores + given.ranks_per_node)
    assert (more.rate_from_cores(cost) or 0.0) - (given.rate_from_cores(cost) or 0.0) == pytest.approx(given.rate_per_core)


def test_core_ceiling_is_at_least_the_achieved_rate() -> None:
    job = diagnosis(900.0, cores=16.0)
    assert pipeline_of(job).rate_from_cores(0.0091) == pytest.approx((16 - 4) / (4 * 0.0091), rel=0.05), "as many as the trainers leave"
    found = pipeline_rates(inputs_of(job), pipeline_of(job))
    assert found.core_bound == found.achieved == pytest.approx(900, rel=0.01)


def test_workers_needed_follow_the_slowest_ranks_workers() -> None:
    slow = {"read": 20.0}
    one, all_of_them = diagnosis(900.0, wall_ms_of={2: slow}), diagnosis(900.0, wall_ms=slow)
    assert pipeline_of(one).workers_needed == pipeline_of(all_of_them).workers_needed
    assert pipeline_of(one).worker_sample_s < pipeline_of(all_of_them).worker_sample_s  # type: ignore[operator]


def test_whole_cores_are_shared_between_ranks_of_a_node() -> None:
    given = pipeline_of(diagnosis(900.0))
    span_s = 1.1 / given.device_rate
    eight = dataclasses.replace(
        given, ranks_per_node=8, trainer_cores=8, main_process_cpu_s=0.0, cost=LoaderCost({"decode": span_s}, {"decode": span_s})
    )
    assert (eight.cores_needed, eight.whole_cores_needed) == (pytest.approx(2.1), 17 / 8)


def test_stage_that_is_the_entire_sample_cost_is_the_cause() -> None:
    job = diagnosis(900.0, cores=64.0, cpu_ms={"decode": 16.0}, busy=0.97)
    assert job.diagnosis is not None
    job.diagnosis.loader_benchmarks = [replace(each, main_process_cpu_s=0.0) for each in job.diagnosis.loader_benchmarks]
    judge(job.records[0], controls=controls_of(job))
    found = verdict_of(job)
    assert found.cause == "decode"
    assert isinstance(found.cause_evidence, DominantStage)
    assert (found.cause_evidence.stage, found.cause_evidence.samples_per_s_without) == ("decode", None)


@pytest.mark.parametrize(
    ("cpu_ms", "cause"), [({"decode": 4.0, "augment": 60.0}, "augment"), ({"decode": 30.0, "augment": 31.0}, "too-few-cores")]
)
def test_stage_covering_most_of_the_shortfall_is_the_cause(cpu_ms: dict[str, float], cause: str) -> None:
    job = diagnosis(240.0, cores=64.0, cpu_ms={"read": 0.2, **cpu_ms, "collate": 1.0}, busy=0.97)
    given = pipeline_of(job)
    assert given.cost is not None
    assert (given.rate_from_cores(given.cost.cpu_s_without("augment") + given.main_process_cpu_s) or 0.0) < 0.6 * given.device_rate
    assert verdict_of(job).cause == cause


def with_busy_neighbour(taken: float, **wait: float) -> Job:
    """Two ranks on two contended cores: computing is slower than on a whole core, and steps contain other waits."""
    work = {phase: span / (1 - taken) for phase, span in SMALL.items()}
    step_ms = sum(work.values()) + sum(wait.values())
    own = (sum(SMALL.values()) + 2) / step_ms
    return cpu_diagnosis(
        None, settings={"loader": "tensor"}, work={**work, **wait}, background=work, busy=own, others=2 - 2 * own, cpu_ms={}
    )


def test_noisy_neighbour_is_reported_only_if_its_wait_is_the_largest() -> None:
    assert verdict_of(with_busy_neighbour(0.4)).kind == "noisy-neighbour"
    assert verdict_of(with_busy_neighbour(0.4, sync=20.0)).kind == "noisy-neighbour"
    late = with_busy_neighbour(0.4, sync=60.0)
    change_traces(late.records[0], lambda trace: {"phases_ms": {**trace.phases_ms, "sync": [0.0, 120.0][:: 1 - 2 * trace.rank] * 10}})
    judge(late.records[0], controls=controls_of(late))
    assert verdict_of(late).kind == "noisy-neighbour", "by turns they wait for the other, which is kept from its core"
    assert verdict_of(with_busy_neighbour(0.4, sync=60.0)).kind == "sync-bound"


@pytest.mark.parametrize(("sync_ms", "kind"), [(0.0, "loader-contends-cpu"), (80.0, "inconclusive")])
def test_loader_contends_cpu_only_if_its_wait_is_the_largest(sync_ms: float, kind: str) -> None:
    """A computing rank gets 0.6 of a core, and its workers use the rest."""
    config = replace(records.cpu_run().config, loader="torch", data_dir="/data/imagenet", workers=1)
    phases = {"data": 0.1, "forward": 34.0, "backward": 66.0, "optimizer": 4.0, "sync": sync_ms}
    step_s, images = sum(phases.values()) / 1000, 8 * STEPS
    worked_s = STEPS * (0.97 * step_s - 0.6 * 0.104)
    trace = {
        "loader_stats": make_loader_stats(images, {"decode": 1000 * worked_s / images}),
        "cpu_s": 0.97 * STEPS * step_s,
        "cpu_usage": CpuUsage(num_cores=2, busy_s=1.97 * STEPS * step_s, wall_s=STEPS * step_s),
    }
    record = records.cpu_run(ranks=[phases] * 2, config=config, traces={rank: trace for rank in range(2)})
    judge(record)
    assert record.verdict is not None
    assert record.verdict.kind == kind


def test_busy_cores_are_not_blamed_on_neighbours_without_loader_costs() -> None:
    found = verdict_of(diagnosis(2000.0, cpu_ms={}, busy=0.4, others=38.0))
    assert (found.kind, found.cause) == ("data-bound", None)
    assert found.cause_evidence == SharedBusyCores(usable_cores=64.0, job_cores=pytest.approx(25.6), other_cores=pytest.approx(38.0))
    assert verdict_of(diagnosis(2000.0, cpu_ms={}, busy=0.97)).cause == "too-few-cores"


def test_cores_taken_by_others_may_be_hypervisor_steal() -> None:
    """Steal time is counted as busy time of others."""
    job = DIAGNOSES["noisy-neighbour"][0]()
    found = verdict_of(job)
    assert isinstance(found.evidence, CoresTakenByOthers)
    assert (found.evidence.cores, found.evidence.other_cores) == (64, pytest.approx(38.0))
    reason = explain_verdict(found, job.records[0]).reason
    assert reason.endswith("; on a virtual machine, its host counts as another process")


def test_cpu_usage_is_relative_to_the_monitors_wall_time() -> None:
    """The monitor also runs while the ranks wait for each other to start."""
    job = diagnosis(None, busy=0.5, others=0.0)
    change_traces(job.records[0], lambda trace: {"cpu_usage": _longer(trace.cpu_usage), "cpu_s": 1.5 * (trace.cpu_s or 0.0)})
    busy = busiest_node(job.records[0])
    assert busy is not None
    assert (busy.job_cores, busy.other_cores) == (pytest.approx(32.0), pytest.approx(0.0, abs=1e-6))


def _longer(use: CpuUsage | None) -> CpuUsage | None:
    return use and replace(use, wall_s=1.5 * use.wall_s, busy_s=1.5 * use.busy_s)


@pytest.mark.parametrize(("throttled", "cause"), [(9.8, "quota"), (16.0, "quota"), (1.0, "too-few-cores")])
def test_cpu_quota_is_the_cause_only_if_it_throttles_enough(throttled: float, cause: str) -> None:
    found = verdict_of(diagnosis(300.0, cores=16.0, config=replace(TORCH, workers=3), busy=0.95, throttled=throttled))
    assert found.cause == cause
    if cause == "quota":
        share = pytest.approx({9.8: 0.39, 16.0: 0.51}[throttled], abs=0.005)
        assert found.cause_evidence == CpuQuota(usable_cores=16.0, cores=64, throttled_fraction=share)


def test_one_core_quota_on_two_cores_is_the_cause() -> None:
    """Both cores always run or throttle a process: one core's worth is throttled."""
    cpu_ms = {"read": 0.1, "decode": 3.0, "augment": 0.9, "collate": 0.1}
    place = records.environment(2, device="Xeon CPU", usable_cores=1.0, variables={"OMP_NUM_THREADS": "1"})
    job = cpu_diagnosis(30.0, cores=1.0, place=place, throttled=1.0, busy=0.98, cpu_ms=cpu_ms)
    assert verdict_of(job).cause == "quota"


@pytest.mark.parametrize(("workers", "cause"), [(8, "decode"), (15, "decode"), (16, "oversubscribed")])
def test_slightly_oversubscribed_workers_do_not_hide_slow_decode(workers: int, cause: str) -> None:
    cpu_ms = {"read": 0.05, "decode": 14.0, "augment": 1.5, "collate": 0.3}
    wall_ms = {stage: workers / 4 * span for stage, span in cpu_ms.items()}
    job = diagnosis(
        165.0, cores=16.0, device={"forward": 120.0, "backward": 220.0}, config=replace(TORCH, workers=workers), **_of(cpu_ms, wall_ms)
    )
    assert verdict_of(job).cause == cause


def _of(cpu_ms: dict[str, float], wall_ms: dict[str, float]) -> dict[str, Any]:
    return {"work": {**WORK, "forward": 120.0, "backward": 220.0}, "cpu_ms": cpu_ms, "wall_ms": wall_ms, "busy": 0.97}


def test_rounds_that_disagree_on_the_cause_report_none() -> None:
    longer = (1.0, 1.05, 0.95, 1.02, 0.98)
    storage = diagnosis(800.0, wall_ms={"read": 30.0}, longer=longer)
    assert verdict_of(storage).cause == "storage"
    decode = diagnosis(800.0, cpu_ms={"read": 0.05, "decode": 14.0, "augment": 1.5, "collate": 0.3}, busy=0.96, longer=longer)
    mixed = storage.records[0]
    mixed.rounds[:2] = decode.records[0].rounds[:2]
    judge(mixed, controls=controls_of(storage))
    found = verdict_of(storage)
    assert (found.kind, found.cause, found.cause_repeatability) == ("data-bound", None, None)
    assert isinstance(found.cause_evidence, UndecidedCause)
    assert found.cause_evidence.first == "storage"
    assert 1 > found.cause_evidence.first_fraction > found.cause_evidence.second_fraction > 0


def test_loader_contends_gpu_regardless_of_data_wait() -> None:
    slowed = {"forward": 19.0, "backward": 36.0}
    config = replace(TORCH, loader="dali-gpu", workers=8)
    job = diagnosis(3300.0, config=config, work={**WORK, **slowed}, device=WORK, background=slowed, cpu_ms={}, benchmark_rate=17_974.0)
    assert inputs_of(job).data_wait_ms > 15
    assert verdict_of(job).kind == "loader-contends-gpu"
    short = diagnosis(3300.0, config=config, work={**WORK, **slowed}, device=WORK, background=slowed, cpu_ms={}, benchmark_rate=5200.0)
    assert verdict_of(short).kind == "loader-contends-gpu", "sharing the device costs more than what the loader lacks by itself"
    slow = diagnosis(3300.0, config=config, work={**WORK, **slowed}, device=WORK, background=slowed, cpu_ms={}, benchmark_rate=4000.0)
    found = verdict_of(slow)
    assert found.kind == "data-bound", "it could not keep up if it had the device for itself"
    assert "--hw-decoder-load 0.65,0.99" in records.next_command(found)


def test_single_run_cannot_separate_gpu_contention_from_slow_loader() -> None:
    slowed = {"forward": 19.0, "backward": 36.0}
    job = diagnosis(3300.0, config=replace(TORCH, loader="dali-gpu", workers=8), work={**WORK, **slowed}, cpu_ms={})
    alone = job.records[0]
    judge(alone)
    assert alone.verdict is not None
    assert alone.verdict.kind == "inconclusive"
    assert isinstance(alone.verdict.evidence, DecodesOnDevice)
    assert " diagnose " in records.next_command(alone.verdict)


def test_interference_is_the_same_in_evidence_and_ceilings() -> None:
    job = DIAGNOSES["loader-contends-gpu"][0]()
    uneven = job.records[-1]
    uneven.rounds[0] = replace(uneven.rounds[0], wall_s=1.4 * uneven.rounds[0].wall_s)
    case = inputs_of(job)
    found, seen = find_interference(case), pipeline_rates(case, pipeline_of(job)).interference
    assert found is not None
    assert seen is not None
    assert found.slowdown_fraction == pytest.approx(seen.center - 1)
    assert isinstance(found, LoaderInBackground)
    assert found.with_loader_ms / found.compute_only_ms == pytest.approx(seen.center)


@pytest.mark.parametrize(("name", "rounds"), [("loader-contends-gpu", 2), ("host-to-device-bound", 1), ("sync-bound", 2)])
def test_one_or_two_paired_rounds_are_insufficient_evidence(name: str, rounds: int) -> None:
    job = DIAGNOSES["replay-bound" if name == "host-to-device-bound" else name][0]()
    assert verdict_of(job).kind == name
    for record in job.records:
        if record.role != BASELINE:
            del record.rounds[rounds:]
        elif name == "sync-bound":  # its timers show it too
            for timed in record.rounds:
                for trace in timed.traces:
                    trace.phases_ms["sync"] = [0.0] * trace.steps
    judge_all(job)
    assert verdict_of(job).kind != name


def test_no_gain_without_sync_rules_out_sync_bound() -> None:
    """Two rounds whose timers show waiting for other ranks, and two independent rounds that took as long."""
    job = DIAGNOSES["sync-bound"][0]()
    device, alone = (next(record for record in job.records if record.role == role) for role in (COMPUTE_ONLY, INDEPENDENT))
    for record in job.records:
        del record.rounds[2:]
    alone.rounds[:] = device.rounds
    judge_all(job)
    found = verdict_of(job)
    assert found.kind == "inconclusive"
    assert isinstance(found.evidence, TooShort)
    assert found.evidence.likely_kind != "sync-bound"


def on_two_nodes(loading_of: tuple[float, float]) -> Record:
    """One rank per node on one core; its loader's workers use ``loading_of`` of that core."""
    config = replace(records.cpu_run().config, loader="torch", data_dir="/data/imagenet", workers=1)
    wall_s = STEPS * 0.1045
    place = records.environment(2, nodes=2, device="Xeon CPU", usable_cores=1.0, variables={"OMP_NUM_THREADS": "1"})

    def trace(share: float) -> dict[str, Any]:
        return {
            "loader_stats": make_loader_stats(8 * STEPS, {"decode": 1000 * share * wall_s / (8 * STEPS)}),
            "cpu_s": (0.75 + share) * wall_s,
            "cpu_usage": CpuUsage(num_cores=1, busy_s=wall_s, wall_s=wall_s),
        }

    phases = {"data": 0.1, "forward": 34.0, "backward": 66.0, "optimizer": 4.0}
    traces = {rank: trace(share) for rank, share in enumerate(loading_of)}
    return records.cpu_run(ranks=[phases] * 2, config=config, environment=place, traces=traces)


def test_workers_on_another_node_do_not_contend() -> None:
    little, much = on_two_nodes((0.06, 0.06)), on_two_nodes((0.12, 0.12))
    assert find_interference(AnalysisInput(little, summarize(little))) is None, "their sum would be more than a tenth of one node's cores"
    assert find_interference(AnalysisInput(much, summarize(much))) is not None


def test_handoff_fraction_counts_only_batches_that_were_waited_for() -> None:
    """Every second wait is 3 ms, all of it handoff; the others are 30 ms without handoff."""
    assert MIN_WAIT_MS == 1000 * MIN_WAIT_S
    job = diagnosis(None, stats={"handoff_ms": 1.5}, work={**WORK, "forward": 60.0, "backward": 120.0})
    change_traces(job.records[0], lambda trace: {"host_data_ms": [3.0, 0.2, 30.0, 0.2] * 5})
    assert pipeline_of(job).handoff_fraction == pytest.approx(1.5 / 16.5)


@pytest.mark.parametrize(("given", "named"), [(5100.0, False), (3000.0, True)])
def test_workers_sufficient_on_average_are_not_too_few(given: float, named: bool) -> None:
    """15 workers deliver 5,900 images/s; the device trains 5,770 images/s when not waiting."""
    span = 15 / (5900.0 if not named else 3100.0)
    job = diagnosis(
        given, cpu_ms={"decode": 0.3, "collate": 0.1}, wall_ms={"decode": 1000 * span - 0.1}, stats={"runqueue_wait_s": None}, busy=0.3
    )
    found = verdict_of(job)
    assert (found.kind, found.cause) == ("data-bound", "too-few-workers" if named else None)
    assert isinstance(found.cause_evidence, TooFewWorkers if named else EnoughWorkers)


def test_batch_preparation_on_cpu_is_handoff_not_copy() -> None:
    """Nothing is copied on CPU; the rank converts bytes to floats itself."""
    job = cpu_diagnosis(None, work={**SMALL, "host_to_device": 25.0}, device=SMALL, background=SMALL, cpu_ms=CHEAP, others=0.0)
    found = verdict_of(job)
    assert (found.kind, found.cause) == ("data-bound", "handoff")
    assert found.evidence == BatchPreparation(prepare_ms=pytest.approx(25.0), step_ms=pytest.approx(87.5))


def test_slow_replay_on_cpu_is_not_host_to_device_bound() -> None:
    job = cpu_diagnosis(None, work=SMALL, replay={"forward": 30.0}, cpu_ms=CHEAP, others=0.0)
    assert verdict_of(job).kind == "compute-bound"


def test_useful_workers_per_core_are_capped() -> None:
    job = diagnosis(80.0, cpu_ms={"read": 0.05, "decode": 0.1}, wall_ms={"read": 100.0})
    given = pipeline_of(job)
    assert given.worker_sample_s is not None
    assert given.core_bound_rate is not None
    assert given.worker_sample_s * given.core_bound_rate > 300
    assert given.max_useful_workers == 256, "16 on each of the 16 cores of a rank"


@pytest.mark.parametrize(("loader", "cost_ms"), [("dali-cpu", 3.6), ("dali-gpu", 3.0)])
def test_stage_costs_are_scaled_to_the_loaded_cost_except_on_gpu(loader: str, cost_ms: float) -> None:
    """Except for GPU loaders: their host threads busy-wait."""
    job = diagnosis(4000.0, ranks=1, cores=16.0, config=replace(TORCH, loader=loader), cpu_ms={})
    assert job.diagnosis is not None
    job.diagnosis.stage_cpu_s = {"read": 0.1e-3, "decode": 1.4e-3, "augment": 1.5e-3}
    job.diagnosis.loader_benchmarks = [
        replace(each, loader_cpu_s=3.6e-3 * each.samples, loader_stats=None) for each in job.diagnosis.loader_benchmarks
    ]
    found = pipeline_model(inputs_of(job)).cost
    assert found is not None
    assert found.cpu_s == pytest.approx(cost_ms / 1000)
    assert found.cpu_s_by_stage["decode"] / found.cpu_s == pytest.approx(1.4 / 3.0)
