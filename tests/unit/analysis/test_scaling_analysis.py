"""Scaling analysis: waterfall of known losses, efficiencies with their doubts, and the verdict."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import get_args

import pytest
import scaling_jobs
from records import next_command
from scaling_jobs import OWN, job

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.scaling.allreduce import allreduce_stats, measure_overlap
from ddpbench.analysis.scaling.ladder import MAX_EFFICIENCY, compute_scaling_points
from ddpbench.analysis.scaling.runs import ScalingRuns, scaling_runs
from ddpbench.analysis.scaling.waterfall import Waterfall, waterfall
from ddpbench.bench.journal import close_records
from ddpbench.record.checks import ImplausibleEfficiency, NoisyBaseline, SlowRankZero, UnknownDoubt
from ddpbench.record.record import Fault, Job, Status
from ddpbench.record.roles import SkippedMeasurement, ddp_role
from ddpbench.record.scaling import CommKernel
from ddpbench.record.scaling_loss import (
    LossName,
    NotMeasured,
    ScalingVerdictKind,
    SlowAllReduce,
    TooFewRounds,
    UndecidedLoss,
    UnreliableBaseline,
)
from ddpbench.record.verdict import RaiseTimeLimit

VERDICT_KINDS: dict[LossName, ScalingVerdictKind] = {
    "contention": "contention-bound",
    "exposed-comm": "link-bound",
    "straggler": "straggler",
    "ddp": "ddp-bound",
    "data": "data-bound",
}
LOSS_PARAMETERS: dict[LossName, dict[str, float]] = {
    "contention": {"contention": 5.0},
    "exposed-comm": {"all_reduce": 7.0},
    "straggler": {"late": 8.0},
    "ddp": {"ddp": 4.0},
    "data": {"data": 20.0},
}


def runs_of(made: Job) -> ScalingRuns:
    found = scaling_runs(made)
    assert found is not None
    return found


def waterfall_of(made: Job) -> Waterfall:
    found = waterfall(runs_of(made))
    assert found is not None
    return found


@pytest.mark.parametrize("name", LOSS_PARAMETERS)
def test_each_loss_has_its_name_and_size(name: LossName) -> None:
    made = job(**LOSS_PARAMETERS[name])  # type: ignore[arg-type]
    way, [size] = waterfall_of(made), LOSS_PARAMETERS[name].values()
    share = 0.75 if name == "straggler" else 1.0  # the late rank does not wait
    lost = {term.name: term.ms_per_step for term in way.terms}
    assert lost.pop(name) == pytest.approx(share * size, rel=0.02)
    late_by_itself = {"ddp"} if name == "straggler" else set()  # one of four ranks is slower on its own
    assert all(abs(ms) < 0.3 for other, ms in lost.items() if other not in late_by_itself)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == VERDICT_KINDS[name]


@pytest.mark.parametrize("made", scaling_jobs.JOBS)
def test_waterfall_closes(made: object) -> None:
    way = waterfall_of(made())  # type: ignore[operator]
    assert way.ideal_samples_per_s + sum(term.samples_per_s for term in way.terms) == pytest.approx(way.measured_samples_per_s)
    assert way.terms[-1].name == "residual"
    assert all(term.half_width is not None for term in way.terms)


def test_loss_in_samples_is_its_share_of_the_step() -> None:
    way = waterfall_of(job(all_reduce=sum(OWN.values()) + 0.4))  # steps twice as long
    term = way.term("exposed-comm")
    assert term is not None
    assert way.measured_samples_per_s == pytest.approx(way.ideal_samples_per_s / 2)
    assert term.samples_per_s == pytest.approx(-way.ideal_samples_per_s / 2, rel=0.01)
    assert way.loss_fraction == pytest.approx(0.5)


def test_efficiency_of_scaling_points_is_relative_to_one_rank() -> None:
    made = job(all_reduce=4.34)  # a tenth of the step
    steps = compute_scaling_points(runs_of(made), waterfall_of(made))
    assert [step.ranks for step in steps] == [1, 2, 4]
    assert [step.efficiency.center for step in steps if step.efficiency] == pytest.approx([1, 1 / 1.1, 1 / 1.1], rel=0.01)
    assert [step.largest_losses for step in steps] == [[], ["exposed-comm"], ["exposed-comm"]]
    assert not any(step.baseline_doubts for step in steps)


def test_efficiency_above_one_lists_baseline_doubts() -> None:
    made = scaling_jobs.too_good()
    steps = compute_scaling_points(runs_of(made), waterfall_of(made))
    assert [bool(step.baseline_doubts) for step in steps] == [False, True, True]
    assert NoisyBaseline in map(type, steps[-1].baseline_doubts)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "unreliable-baseline"
    assert isinstance(made.scaling.verdict.evidence, UnreliableBaseline)
    assert (made.scaling.verdict.evidence.ranks, made.scaling.verdict.evidence.doubts) == (4, steps[-1].baseline_doubts)
    checks = [check for record in made.records for check in record.checks if isinstance(check, ImplausibleEfficiency)]
    assert [check.severity for check in checks] == ["warning", "warning"]
    assert all(check.efficiency > MAX_EFFICIENCY for check in checks)
    assert checks[-1].baseline_doubts == steps[-1].baseline_doubts


def test_slow_rank_zero_explains_implausible_efficiency() -> None:
    made = job(baseline_factors=(1.10, 1.10, 1.10, 1.10, 1.10))
    assert compute_scaling_points(runs_of(made), waterfall_of(made))[-1].baseline_doubts == [UnknownDoubt()]
    apart = runs_of(made).independent
    assert apart is not None
    for timed in apart.rounds:
        timed.traces[0].phases_ms["sync"][:] = [-4.0] * timed.traces[0].steps  # rank 0 is slower on its own
    assert compute_scaling_points(runs_of(made), waterfall_of(made))[-1].baseline_doubts == [
        SlowRankZero(excess_fraction=pytest.approx(0.09, abs=0.005))
    ]


def test_smaller_batch_is_a_loss_of_strong_scaling() -> None:
    made = scaling_jobs.strong()
    lost = {term.name: term.ms_per_step for term in waterfall_of(made).terms}
    assert list(lost) == ["smaller-batch", "contention", "exposed-comm", "straggler", "ddp", "residual"]
    assert lost["smaller-batch"] == pytest.approx(3.1 + 0.4 * 0.75, rel=0.02)  # unexplained time does not shrink with the batch
    assert lost["exposed-comm"] == pytest.approx(1.9, rel=0.02)
    steps = compute_scaling_points(runs_of(made), waterfall_of(made))
    assert [step.largest_losses for step in steps] == [[], ["slower-ranks"], ["smaller-batch"]], "a loss appears under one name"


def test_largest_loss_must_be_separated_by_its_interval() -> None:
    made = scaling_jobs.network()
    way = waterfall_of(made)
    (greatest,), other = way.largest, next(term for term in way.terms if term.name == "contention")
    assert compute_scaling_points(runs_of(made), way)[-1].largest_losses == [greatest.name]
    most, of = greatest.samples_per_s, greatest.loss_fraction
    nearly = [ms * times for ms, times in zip(greatest.ms_by_round, [0.7, 1.1, 0.9, 0.8, 1.0], strict=True)]
    unsure = replace(other, samples_per_s=0.9 * most, loss_fraction=0.9 * of, ms_by_round=nearly)
    unclear = replace(way, terms=[unsure if term is other else term for term in way.terms])
    assert compute_scaling_points(runs_of(made), unclear)[-1].largest_losses == [greatest.name, "contention"]


def test_two_losses_of_similar_size_compete() -> None:
    """Contention is the larger loss in some rounds, all-reduce in others."""
    made, more, less = job(**{"contention": 5.0, "all_reduce": 5.4}), *(job(contention=ms, all_reduce=10.4 - ms) for ms in (9.0, 1.0))
    for record, high, low in zip(made.records, more.records, less.records, strict=True):
        record.rounds = [record.rounds[0], high.rounds[1], low.rounds[2], high.rounds[3], low.rounds[4]]
    judge_all(made)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "inconclusive"
    competing = made.scaling.verdict.evidence
    assert isinstance(competing, UndecidedLoss)
    assert {competing.first, competing.second} == {"contention-bound", "link-bound"}
    assert made.scaling.verdict.runner_up in (competing.first, competing.second)


def test_exposed_communication_between_nodes_is_network_bound() -> None:
    found = scaling_jobs.network().scaling
    assert found is not None
    assert found.verdict is not None
    assert found.verdict.kind == "network-bound"
    sent = found.verdict.evidence
    assert isinstance(sent, SlowAllReduce)
    assert sent.busbw is not None
    assert sent.max_busbw is not None
    assert 0.7 < sent.busbw / sent.max_busbw <= 1
    words = shlex.split(next_command(found.verdict))
    assert words[-2:] == ["--comm-hook", "none,fp16"]
    assert "scale" not in words


def test_next_command_of_strong_scaling_uses_the_batch_per_rank() -> None:
    made = job(strong=True, all_reduce=20.0)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    words = shlex.split(next_command(made.scaling.verdict))
    assert words[words.index("--batch-size") + 1] == "64"


def test_allreduce_stats_come_from_buckets_and_arms() -> None:
    made = job(all_reduce=2.5, allreduce_only_ms=10.0, max_busbw=20.4e9)
    sent = allreduce_stats(runs_of(made))
    assert sent is not None
    assert sent.total_bytes == 102_000_000
    assert sent.busbw == pytest.approx(2 * 3 / 4 * 102e6 / 10e-3, rel=0.01)
    assert sent.hidden_fraction == pytest.approx(0.75, rel=0.01)
    assert sent.comm_cost_by_arms_ms == pytest.approx(2.5, rel=0.02)
    assert sent.comm_cost_by_timers_ms == pytest.approx(2.5, rel=0.02)


def test_spinning_kernel_waiting_for_a_late_rank_is_not_communication() -> None:
    early, late = CommKernel(10.0, 9.0), CommKernel(0.1, 0.0)
    last = CommKernel(0.2, 0.2)
    found = measure_overlap([[early, late, last], [late, early, CommKernel(0.3, 0.3)]], steps=2)
    assert found is not None
    assert found.communication_ms == pytest.approx((0.1 + 0.1 + 0.2) / 2)
    assert found.exposed_ms == pytest.approx(0.2 / 2)


def test_ranks_with_different_kernels_give_no_overlap() -> None:
    assert measure_overlap([[CommKernel(1.0, 0.0)], []], steps=5) is None
    assert measure_overlap([[], []], steps=5) is None


def test_single_rank_ddp_overhead_is_not_communication() -> None:
    made = job(all_reduce=2.5, broadcast=1.5, allreduce_only_ms=10.0)
    sent = allreduce_stats(runs_of(made))
    assert sent is not None
    assert sent.hidden_fraction == pytest.approx(0.75, rel=0.01)
    assert sent.comm_cost_by_arms_ms == pytest.approx(2.5, rel=0.02)
    assert sent.comm_cost_by_timers_ms == pytest.approx(2.5, rel=0.02)


def test_slower_compute_during_loading_is_a_data_loss() -> None:
    made = job(data=3.0, background=5.0)
    lost = {term.name: term.ms_per_step for term in waterfall_of(made).terms}
    assert lost.pop("data") == pytest.approx(8.0, rel=0.02)
    assert all(abs(ms) < 0.3 for ms in lost.values())


def test_implausible_efficiency_is_checked_without_the_last_scaling_point() -> None:
    made = job(baseline_factors=(1.10, 1.02, 1.07, 1.13, 1.04))
    made.records[2].rounds.clear()
    scaling_jobs.judge_all(made)
    assert [bool(step.baseline_doubts) for step in compute_scaling_points(runs_of(made), None)] == [False, True]
    assert [type(check) for check in made.records[1].checks].count(ImplausibleEfficiency) == 1


def test_too_few_rounds_are_inconclusive_and_missing_ends_give_no_verdict() -> None:
    made = job(all_reduce=20.0)
    for record in made.records:
        del record.rounds[2:]
    scaling_jobs.judge_all(made)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "inconclusive"
    assert isinstance(made.scaling.verdict.evidence, TooFewRounds)
    assert made.scaling.verdict.evidence.rounds == 2
    made.records[0].rounds.clear()
    assert waterfall(runs_of(made)) is None


@pytest.mark.parametrize("status", ["failed", "hung", "interrupted"])
def test_interrupted_scaling_run_has_a_waterfall_but_failed_run_has_none(status: Status) -> None:
    made = job(all_reduce=20.0)
    for record in made.records:
        del record.rounds[4:]
        record.status = "running"
    fault = Fault(message="rank 1 (n1) killed (SIGKILL?): last heartbeat at step 3", phase="training")
    close_records(made.records, status, fault)
    scaling_jobs.judge_all(made)
    assert {record.status for record in made.records} == {status}
    assert (waterfall(runs_of(made)) is None) == (status != "interrupted")


def test_every_scaling_verdict_is_a_known_kind() -> None:
    assert {*VERDICT_KINDS.values(), "network-bound", "scales", "inconclusive", "unreliable-baseline"} <= {*get_args(ScalingVerdictKind)}


def test_skipped_scaling_point_is_reported_instead_of_a_loss() -> None:
    made = scaling_jobs.whole()
    assert made.scaling is not None
    for record in made.records:
        if record.role != ddp_role(1):
            record.rounds = []
            made.scaling.skipped.append(SkippedMeasurement(record.role, "no_time_left"))
    judge_all(made)
    verdict = made.scaling.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.evidence, verdict.next) == ("inconclusive", NotMeasured(world_sizes=[2, 4]), RaiseTimeLimit())
    made.scaling.skipped.clear()
    judge_all(made)
    assert made.scaling.verdict is None, "it ended for another reason"
