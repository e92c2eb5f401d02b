"""What is read from a ladder: a way down that closes on known losses, efficiencies with their doubts, and the verdict."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import get_args

import ladders
import pytest
from ladders import OWN, job

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.scaling.allreduce import allreduce_stats, measure_overlap
from ddpbench.analysis.scaling.ladder import SLOWER_RANKS, compute_scaling_points
from ddpbench.analysis.scaling.runs import ScalingRuns, scaling_runs
from ddpbench.analysis.scaling.waterfall import (
    ALL_REDUCE,
    CONTENTION,
    DATA,
    DDP,
    RESIDUAL,
    SMALLER_BATCH,
    STRAGGLER,
    Waterfall,
    waterfall,
)
from ddpbench.bench.journal import close_records
from ddpbench.record.record import Fault, Job, Status
from ddpbench.record.scaling import CommKernel
from ddpbench.record.verdict import ScalingLoss

NAMES = {
    CONTENTION: "contention-bound",
    ALL_REDUCE: "link-bound",
    STRAGGLER: "straggler",
    DDP: "ddp-bound",
    DATA: "data-bound",
}
MADE = {
    CONTENTION: {"contention": 5.0},
    ALL_REDUCE: {"all_reduce": 7.0},
    STRAGGLER: {"late": 8.0},
    DDP: {"ddp": 4.0},
    DATA: {"data": 20.0},
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
def test_each_loss_has_its_own_name_and_its_size(name: str) -> None:
    made = job(**MADE[name])  # type: ignore[arg-type]
    way, [size] = way_of(made), MADE[name].values()
    share = 0.75 if name == STRAGGLER else 1.0  # the late rank itself does not wait
    lost = {term.name: term.ms_per_step for term in way.terms}
    assert lost.pop(name) == pytest.approx(share * size, rel=0.02)
    late_by_itself = {DDP} if name == STRAGGLER else set()  # a quarter of the ranks is slower by itself
    assert all(abs(ms) < 0.3 for other, ms in lost.items() if other not in late_by_itself)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == NAMES[name]


@pytest.mark.parametrize("made", [ladders.whole, ladders.network, ladders.strong, ladders.straggling, ladders.too_good, ladders.data_bound])
def test_the_way_down_closes(made: object) -> None:
    way = way_of(made())  # type: ignore[operator]
    assert way.ideal_images_per_s + sum(term.images_per_s for term in way.terms) == pytest.approx(way.measured_images_per_s)
    assert way.terms[-1].name == RESIDUAL
    assert all(term.half_width is not None for term in way.terms)


def test_a_loss_in_images_is_its_share_of_the_step() -> None:
    way = way_of(job(all_reduce=sum(OWN.values()) + 0.4))  # steps twice as long
    term = way.term(ALL_REDUCE)
    assert term is not None
    assert way.measured_images_per_s == pytest.approx(way.ideal_images_per_s / 2)
    assert term.images_per_s == pytest.approx(-way.ideal_images_per_s / 2, rel=0.01)
    assert way.loss_fraction == pytest.approx(0.5)


def test_rungs_keep_a_share_of_one_rank() -> None:
    made = job(all_reduce=4.34)  # a tenth of the step
    steps = compute_scaling_points(arms(made), way_of(made))
    assert [step.ranks for step in steps] == [1, 2, 4]
    assert [step.efficiency.center for step in steps if step.efficiency] == pytest.approx([1, 1 / 1.1, 1 / 1.1], rel=0.01)
    assert [step.largest_loss for step in steps] == ["", ALL_REDUCE, ALL_REDUCE]
    assert not any(step.baseline_doubts for step in steps)


def test_more_than_all_of_one_rank_says_what_is_wrong_with_it() -> None:
    made = ladders.too_good()
    steps = compute_scaling_points(arms(made), way_of(made))
    assert [bool(step.baseline_doubts) for step in steps] == [False, True, True]
    assert any("vary by" in doubt for doubt in steps[-1].baseline_doubts)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "baseline-in-doubt"
    checks = [check for record in made.records for check in record.checks if "efficiency" in check.numbers]
    assert [check.code for check in checks] == ["implausible", "implausible"]
    assert {check.severity for check in checks} == {"warns"}


def test_a_rank_that_was_always_slow_is_found_behind_an_efficiency_that_cannot_be() -> None:
    made = job(longer_one=(1.10, 1.10, 1.10, 1.10, 1.10))
    assert compute_scaling_points(arms(made), way_of(made))[-1].baseline_doubts == [
        "nothing that was measured tells why: measure again, with more --rounds"
    ]
    apart = arms(made).independent
    assert apart is not None
    for timed in apart.rounds:
        timed.traces[0].phases_ms["sync"][:] = [-4.0] * timed.traces[0].steps  # rank 0 takes longer by itself
    assert compute_scaling_points(arms(made), way_of(made))[-1].baseline_doubts == [
        "rank 0, on which it trains, is 9% slower than the others by itself"
    ]


def test_a_smaller_batch_is_a_loss_of_strong_scaling() -> None:
    made = ladders.strong()
    lost = {term.name: term.ms_per_step for term in way_of(made).terms}
    assert list(lost) == [SMALLER_BATCH, CONTENTION, ALL_REDUCE, STRAGGLER, DDP, RESIDUAL]
    assert lost[SMALLER_BATCH] == pytest.approx(3.1 + 0.4 * 0.75, rel=0.02)  # what no phase holds is not shared
    assert lost[ALL_REDUCE] == pytest.approx(1.9, rel=0.02)
    assert [step.largest_loss for step in compute_scaling_points(arms(made), way_of(made))] == ["", SLOWER_RANKS, SMALLER_BATCH], (
        "one loss has one name"
    )


def test_a_loss_is_the_greatest_only_where_its_interval_says_so() -> None:
    made = ladders.network()
    way = way_of(made)
    (greatest,), other = way.largest, next(term for term in way.terms if term.name == CONTENTION)
    assert compute_scaling_points(arms(made), way)[-1].largest_loss == greatest.name
    most, of = greatest.images_per_s, greatest.loss_fraction
    nearly = [ms * times for ms, times in zip(greatest.ms_by_round, [0.7, 1.1, 0.9, 0.8, 1.0], strict=True)]
    unsure = replace(other, images_per_s=0.9 * most, loss_fraction=0.9 * of, ms_by_round=nearly)
    unclear = replace(way, terms=[unsure if term is other else term for term in way.terms])
    assert compute_scaling_points(arms(made), unclear)[-1].largest_loss == f"{greatest.name} or {CONTENTION}"


def test_two_losses_of_nearly_equal_size_compete() -> None:
    """Contention is the larger loss in some rounds, all-reduce in the others."""
    made, more, less = job(**{"contention": 5.0, "all_reduce": 5.4}), *(job(contention=ms, all_reduce=10.4 - ms) for ms in (9.0, 1.0))
    for record, high, low in zip(made.records, more.records, less.records, strict=True):
        record.rounds = [record.rounds[0], high.rounds[1], low.rounds[2], high.rounds[3], low.rounds[4]]
    judge_all(made)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "inconclusive"
    assert {made.scaling.verdict.says.split()[0], made.scaling.verdict.runner_up} == {"contention-bound", "link-bound"}


def test_two_nodes_that_wait_for_gradients_wait_for_their_network() -> None:
    found = ladders.network().scaling
    assert found is not None
    assert found.verdict is not None
    assert found.verdict.kind == "network-bound"
    assert "the network between node-01 and node-02" in found.verdict.says
    assert "all that it gives" in found.verdict.why
    assert shlex.split(found.verdict.next)[-2:] == ["--comm-hook", "none,fp16"]
    assert "scale" not in shlex.split(found.verdict.next)


def test_the_next_run_of_a_kept_batch_gives_each_rank_its_share() -> None:
    made = job(strong=True, all_reduce=20.0)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    words = shlex.split(made.scaling.verdict.next)
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
    assert lost.pop(DATA) == pytest.approx(8.0, rel=0.02)
    assert all(abs(ms) < 0.3 for ms in lost.values())


def test_an_efficiency_that_cannot_be_has_its_doubts_also_where_the_last_rung_is_missing() -> None:
    made = job(longer_one=(1.10, 1.02, 1.07, 1.13, 1.04))
    made.records[2].rounds.clear()
    ladders.judge_all(made)
    assert [bool(step.baseline_doubts) for step in compute_scaling_points(arms(made), None)] == [False, True]
    assert [check.code for check in made.records[1].checks if "efficiency" in check.numbers] == ["implausible"]


def test_too_few_rounds_are_no_verdict_and_no_ladder_without_its_ends() -> None:
    made = job(all_reduce=20.0)
    for record in made.records:
        del record.rounds[2:]
    ladders.judge_all(made)
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    assert made.scaling.verdict.kind == "inconclusive"
    made.records[0].rounds.clear()
    assert waterfall(arms(made)) is None


@pytest.mark.parametrize("status", ["failed", "hung", "interrupted"])
def test_a_ladder_that_ended_midway_is_closed_and_told_without_a_way_down_where_an_arm_failed(status: Status) -> None:
    made = job(all_reduce=20.0)
    for record in made.records:
        del record.rounds[4:]
        record.status = "running"
    fault = Fault(message="killed (SIGKILL?) on rank 1 (n1), last seen at step 3", phase="training")
    close_records(made.records, status, fault)
    ladders.judge_all(made)
    assert {record.status for record in made.records} == {status}
    assert (waterfall(arms(made)) is None) == (status != "interrupted")


def test_every_verdict_that_is_told_is_known() -> None:
    assert {*NAMES.values(), "network-bound", "scales", "inconclusive", "baseline-in-doubt"} <= {*get_args(ScalingLoss)}


def test_a_rung_for_which_there_was_no_time_is_named_in_place_of_a_loss() -> None:
    made = ladders.whole()
    assert made.scaling is not None
    for record in made.records:
        if record.label != "1 rank":
            record.rounds = []
            made.scaling.skip_reasons[record.label] = "no time was left for it"
    judge_all(made)
    told = made.scaling.verdict
    assert told is not None
    assert (told.kind, told.says) == ("inconclusive", "2 ranks and 4 ranks had no round: what is lost on the way was not measured")
    assert (told.why, told.next) == ("no time was left for it", "a longer --time-limit")
    made.scaling.skip_reasons.clear()
    judge_all(made)
    assert made.scaling.verdict is None, "something else ended it"
