"""What is read from a ladder: a way down that closes on known losses, efficiencies with their doubts, and the verdict."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import get_args

import ladders
import pytest
from ladders import OWN, job
from records import next_command

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.scaling.allreduce import allreduce_stats, measure_overlap
from ddpbench.analysis.scaling.ladder import MAX_EFFICIENCY, compute_scaling_points
from ddpbench.analysis.scaling.runs import ScalingRuns, scaling_runs
from ddpbench.analysis.scaling.waterfall import Waterfall, waterfall
from ddpbench.bench.journal import close_records
from ddpbench.record.checks import ImplausibleEfficiency, NoisyBaseline, SlowRankZero, UnknownDoubt
from ddpbench.record.record import Fault, Job, Status
from ddpbench.record.roles import ddp_role
from ddpbench.record.scaling import CommKernel
from ddpbench.record.scaling_loss import LossName, NotMeasured, ScalingLoss, SlowAllReduce, TooFewRounds, UndecidedLoss, UnreliableBaseline
from ddpbench.record.skipped import SkippedMeasurement
from ddpbench.record.verdict import RaiseTimeLimit

NAMES: dict[LossName, ScalingLoss] = {
    "contention": "contention-bound",
    "exposed-allreduce": "link-bound",
    "straggler": "straggler",
    "ddp": "ddp-bound",
    "data": "data-bound",
}
MADE: dict[LossName, dict[str, float]] = {
    "contention": {"contention": 5.0},
    "exposed-allreduce": {"all_reduce": 7.0},
    "straggler": {"late": 8.0},
    "ddp": {"ddp": 4.0},
    "data": {"data": 20.0},
}


def arms(made: Job) -> ScalingRuns:
    found = scaling_runs(made)
    assert found is not None
    return found


def way_of(made: Job) -> Waterfall:
    found = waterfall(arms(made))
    assert found is not None
    return found


@pytest.mark.parametrize("name", MADE)
def test_each_loss_has_its_own_name_and_its_size(name: LossName) -> None:
    made = job(**MADE[name])  # type: ignore[arg-type]
    way, [size] = way_of(made), MADE[name].values()
    share = 0.75 if name == "straggler" else 1.0  # the late rank itself does not wait
    lost = {term.name: term.ms_per_step for term in way.terms}
    assert lost.pop(name) == pytest.approx(share * size, rel=0.02)
    late_by_itself = {"ddp"} if name == "straggler" else set()  # a quarter of the ranks is slower by itself
    assert all(abs(ms) < 0.3 for other, ms in lost.items() if other not in late_by_itself)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == NAMES[name]


@pytest.mark.parametrize("made", [ladders.whole, ladders.network, ladders.strong, ladders.straggling, ladders.too_good, ladders.data_bound])
def test_the_way_down_closes(made: object) -> None:
    way = way_of(made())  # type: ignore[operator]
    assert way.ideal_samples_per_s + sum(term.samples_per_s for term in way.terms) == pytest.approx(way.measured_samples_per_s)
    assert way.terms[-1].name == "residual"
    assert all(term.half_width is not None for term in way.terms)


def test_a_loss_in_images_is_its_share_of_the_step() -> None:
    way = way_of(job(all_reduce=sum(OWN.values()) + 0.4))  # steps twice as long
    term = way.term("exposed-allreduce")
    assert term is not None
    assert way.measured_samples_per_s == pytest.approx(way.ideal_samples_per_s / 2)
    assert term.samples_per_s == pytest.approx(-way.ideal_samples_per_s / 2, rel=0.01)
    assert way.loss_fraction == pytest.approx(0.5)


def test_rungs_keep_a_share_of_one_rank() -> None:
    made = job(all_reduce=4.34)  # a tenth of the step
    steps = compute_scaling_points(arms(made), way_of(made))
    assert [step.ranks for step in steps] == [1, 2, 4]
    assert [step.efficiency.center for step in steps if step.efficiency] == pytest.approx([1, 1 / 1.1, 1 / 1.1], rel=0.01)
    assert [step.largest_losses for step in steps] == [[], ["exposed-allreduce"], ["exposed-allreduce"]]
    assert not any(step.baseline_doubts for step in steps)


def test_more_than_all_of_one_rank_says_what_is_wrong_with_it() -> None:
    made = ladders.too_good()
    steps = compute_scaling_points(arms(made), way_of(made))
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


def test_a_rank_that_was_always_slow_is_found_behind_an_efficiency_that_cannot_be() -> None:
    made = job(longer_one=(1.10, 1.10, 1.10, 1.10, 1.10))
    assert compute_scaling_points(arms(made), way_of(made))[-1].baseline_doubts == [UnknownDoubt()]
    apart = arms(made).independent
    assert apart is not None
    for timed in apart.rounds:
        timed.traces[0].phases_ms["sync"][:] = [-4.0] * timed.traces[0].steps  # rank 0 takes longer by itself
    assert compute_scaling_points(arms(made), way_of(made))[-1].baseline_doubts == [
        SlowRankZero(excess_fraction=pytest.approx(0.09, abs=0.005))
    ]


def test_a_smaller_batch_is_a_loss_of_strong_scaling() -> None:
    made = ladders.strong()
    lost = {term.name: term.ms_per_step for term in way_of(made).terms}
    assert list(lost) == ["smaller-batch", "contention", "exposed-allreduce", "straggler", "ddp", "residual"]
    assert lost["smaller-batch"] == pytest.approx(3.1 + 0.4 * 0.75, rel=0.02)  # what no phase holds is not shared
    assert lost["exposed-allreduce"] == pytest.approx(1.9, rel=0.02)
    steps = compute_scaling_points(arms(made), way_of(made))
    assert [step.largest_losses for step in steps] == [[], ["slower-ranks"], ["smaller-batch"]], "one loss has one name"


def test_a_loss_is_the_greatest_only_where_its_interval_says_so() -> None:
    made = ladders.network()
    way = way_of(made)
    (greatest,), other = way.largest, next(term for term in way.terms if term.name == "contention")
    assert compute_scaling_points(arms(made), way)[-1].largest_losses == [greatest.name]
    most, of = greatest.samples_per_s, greatest.loss_fraction
    nearly = [ms * times for ms, times in zip(greatest.ms_by_round, [0.7, 1.1, 0.9, 0.8, 1.0], strict=True)]
    unsure = replace(other, samples_per_s=0.9 * most, loss_fraction=0.9 * of, ms_by_round=nearly)
    unclear = replace(way, terms=[unsure if term is other else term for term in way.terms])
    assert compute_scaling_points(arms(made), unclear)[-1].largest_losses == [greatest.name, "contention"]


def test_two_losses_of_nearly_equal_size_compete() -> None:
    """Contention is the larger loss in some rounds, all-reduce in the others."""
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


def test_two_nodes_that_wait_for_gradients_wait_for_their_network() -> None:
    found = ladders.network().scaling
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


def test_the_next_run_of_a_kept_batch_gives_each_rank_its_share() -> None:
    made = job(strong=True, all_reduce=20.0)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    words = shlex.split(next_command(made.scaling.verdict))
    assert words[words.index("--batch-size") + 1] == "64"


def test_traffic_is_told_from_buckets_and_arms() -> None:
    made = job(all_reduce=2.5, alone_ms=10.0, ceiling=20.4e9)
    sent = allreduce_stats(arms(made))
    assert sent is not None
    assert sent.total_bytes == 102_000_000
    assert sent.busbw == pytest.approx(2 * 3 / 4 * 102e6 / 10e-3, rel=0.01)
    assert sent.hidden_fraction == pytest.approx(0.75, rel=0.01)
    assert sent.comm_cost_by_arms_ms == pytest.approx(2.5, rel=0.02)
    assert sent.comm_cost_by_timers_ms == pytest.approx(2.5, rel=0.02)


def test_a_kernel_that_spins_for_a_late_rank_is_no_communication() -> None:
    early, late = CommKernel(10.0, 9.0), CommKernel(0.1, 0.0)
    last = CommKernel(0.2, 0.2)
    found = measure_overlap([[early, late, last], [late, early, CommKernel(0.3, 0.3)]], steps=2)
    assert found is not None
    assert found.communication_ms == pytest.approx((0.1 + 0.1 + 0.2) / 2)
    assert found.exposed_ms == pytest.approx(0.2 / 2)


def test_ranks_that_saw_other_kernels_tell_nothing() -> None:
    assert measure_overlap([[CommKernel(1.0, 0.0)], []], steps=5) is None
    assert measure_overlap([[], []], steps=5) is None


def test_what_ddp_does_on_one_rank_too_is_neither_exposed_nor_a_cost_of_others() -> None:
    made = job(all_reduce=2.5, broadcast=1.5, alone_ms=10.0)
    sent = allreduce_stats(arms(made))
    assert sent is not None
    assert sent.hidden_fraction == pytest.approx(0.75, rel=0.01)
    assert sent.comm_cost_by_arms_ms == pytest.approx(2.5, rel=0.02)
    assert sent.comm_cost_by_timers_ms == pytest.approx(2.5, rel=0.02)


def test_computing_more_slowly_beside_the_loader_is_a_loss_to_data() -> None:
    made = job(data=3.0, beside=5.0)
    lost = {term.name: term.ms_per_step for term in way_of(made).terms}
    assert lost.pop("data") == pytest.approx(8.0, rel=0.02)
    assert all(abs(ms) < 0.3 for ms in lost.values())


def test_an_efficiency_that_cannot_be_has_its_doubts_also_where_the_last_rung_is_missing() -> None:
    made = job(longer_one=(1.10, 1.02, 1.07, 1.13, 1.04))
    made.records[2].rounds.clear()
    ladders.judge_all(made)
    assert [bool(step.baseline_doubts) for step in compute_scaling_points(arms(made), None)] == [False, True]
    assert [type(check) for check in made.records[1].checks].count(ImplausibleEfficiency) == 1


def test_too_few_rounds_are_no_verdict_and_no_ladder_without_its_ends() -> None:
    made = job(all_reduce=20.0)
    for record in made.records:
        del record.rounds[2:]
    ladders.judge_all(made)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "inconclusive"
    assert isinstance(made.scaling.verdict.evidence, TooFewRounds)
    assert made.scaling.verdict.evidence.rounds == 2
    made.records[0].rounds.clear()
    assert waterfall(arms(made)) is None


@pytest.mark.parametrize("status", ["failed", "hung", "interrupted"])
def test_a_ladder_that_ended_midway_is_closed_and_told_without_a_way_down_where_an_arm_failed(status: Status) -> None:
    made = job(all_reduce=20.0)
    for record in made.records:
        del record.rounds[4:]
        record.status = "running"
    fault = Fault(message="rank 1 (n1) killed (SIGKILL?): last heartbeat at step 3", phase="training")
    close_records(made.records, status, fault)
    ladders.judge_all(made)
    assert {record.status for record in made.records} == {status}
    assert (waterfall(arms(made)) is None) == (status != "interrupted")


def test_every_verdict_that_is_told_is_known() -> None:
    assert {*NAMES.values(), "network-bound", "scales", "inconclusive", "unreliable-baseline"} <= {*get_args(ScalingLoss)}


def test_a_rung_for_which_there_was_no_time_is_named_in_place_of_a_loss() -> None:
    made = ladders.whole()
    assert made.scaling is not None
    for record in made.records:
        if record.role != ddp_role(1):
            record.rounds = []
            made.scaling.skipped.append(SkippedMeasurement(record.role, "no_time_left"))
    judge_all(made)
    told = made.scaling.verdict
    assert told is not None
    assert (told.kind, told.evidence, told.next) == ("inconclusive", NotMeasured(world_sizes=[2, 4]), RaiseTimeLimit())
    made.scaling.skipped.clear()
    judge_all(made)
    assert made.scaling.verdict is None, "something else ended it"
