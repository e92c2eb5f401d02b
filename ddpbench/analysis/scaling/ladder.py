"""Scaling points: throughput, efficiency and largest loss per world size."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.checks.rounds import MAX_ROUND_CV
from ddpbench.analysis.compare import comparable_estimate, throughput_ratio
from ddpbench.analysis.ranks import own_ms
from ddpbench.analysis.run_length import MIN_ROUNDS
from ddpbench.analysis.scaling.runs import ScalingRuns, step_means
from ddpbench.analysis.scaling.waterfall import Waterfall
from ddpbench.analysis.stats import PairedRatio, coefficient_of_variation, log_trimmed_ci, trimmed_mean
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.throughput import ThroughputInterval, throughput_interval
from ddpbench.record.checks import (
    AnyBaselineDoubt,
    CheckedBaseline,
    Drift,
    LowerClock,
    NoisyBaseline,
    NoisyNeighbour,
    SharedGpu,
    ShortBaseline,
    SlowRankZero,
    SlowWholeBatch,
    Throttled,
    UnknownDoubt,
)
from ddpbench.record.record import Record
from ddpbench.record.scaling_loss import LossName

MAX_EFFICIENCY = 1.02
"""An efficiency above this is no success: the 1-rank baseline was slow."""

LOWER_CLOCK_FRACTION = 0.97
"""A clock below this fraction of another counts as lower."""

MIN_NAMED_LOSS_FRACTION = 0.005
"""Smaller losses are not named; a fraction of the ideal."""


@dataclass(frozen=True)
class ScalingPoint:
    """DDP on ``ranks`` ranks.

    ``efficiency`` is a fraction; None without rounds shared with the 1-rank baseline.
    """

    ranks: int
    samples_per_s: float
    interval: ThroughputInterval | None
    efficiency: PairedRatio | None
    largest_losses: list[LossName]  # empty if next to nothing is lost; two for the final run if the rounds do not separate them
    baseline_doubts: list[AnyBaselineDoubt]  # reasons to doubt the baseline, if the efficiency is implausibly high


def compute_scaling_points(runs: ScalingRuns, breakdown: Waterfall | None) -> list[ScalingPoint]:
    """Return the scaling points that have a throughput, fewest ranks first."""
    return [point for ranks, record in sorted(runs.ddp_by_ranks.items()) if (point := _scaling_point(ranks, record, runs, breakdown))]


def _scaling_point(ranks: int, record: Record, runs: ScalingRuns, breakdown: Waterfall | None) -> ScalingPoint | None:
    estimate, one = comparable_estimate(record), runs.single_rank
    if estimate is None:
        return None
    speedup = throughput_ratio(record, one, log_trimmed_ci) if one else None
    efficiency = speedup and PairedRatio(speedup.center / ranks, speedup.low / ranks, speedup.high / ranks, speedup.pairs)
    doubts = find_baseline_doubts(runs, one, record) if efficiency and one and efficiency.center > MAX_EFFICIENCY else []
    losses = [] if one is None or one is record or doubts else _largest_losses(record, one, runs, breakdown)
    return ScalingPoint(ranks, estimate.samples_per_s, throughput_interval(record), efficiency, losses, doubts)


def _largest_losses(record: Record, single_rank: Record, runs: ScalingRuns, breakdown: Waterfall | None) -> list[LossName]:
    if record is runs.final and breakdown:
        return [term.name for term in breakdown.largest if term.loss_fraction > MIN_NAMED_LOSS_FRACTION]
    base, steps = ([step_means(timed) for timed in each.rounds] for each in (single_rank, record))
    batch_divisor = record.world_size if runs.scaling.strong_scaling else 1
    ideal_ms = trimmed_mean([step.wall_ms for step in base]) / batch_divisor
    lost_ms: dict[LossName, float] = {
        "exposed-comm": trimmed_mean([step.exposed_comm_ms for step in steps]) - trimmed_mean([step.wait_ms for step in base]),
        "straggler": trimmed_mean([step.wait_ms - step.exposed_comm_ms - step.peer_data_wait_ms for step in steps]),
        "slower-ranks": trimmed_mean([step.busy_ms for step in steps]) - trimmed_mean([step.busy_ms for step in base]) / batch_divisor,
    }
    worst_name = max(lost_ms, key=lambda name: lost_ms[name])
    return [worst_name] if lost_ms[worst_name] > MIN_NAMED_LOSS_FRACTION * ideal_ms else []


def find_baseline_doubts(runs: ScalingRuns, single_rank: Record, many: Record) -> list[AnyBaselineDoubt]:
    """Return the reasons to doubt ``single_rank`` as the baseline of ``many``; one of an unknown kind if none was found."""
    found: list[AnyBaselineDoubt] = []
    round_cv = coefficient_of_variation([timed.samples_per_s for timed in single_rank.rounds]) if len(single_rank.rounds) > 1 else 0.0
    if round_cv > MAX_ROUND_CV:
        found.append(NoisyBaseline(round_cv=round_cv))
    if len(single_rank.rounds) < MIN_ROUNDS:
        found.append(ShortBaseline(rounds=len(single_rank.rounds)))
    found += [
        CheckedBaseline(check=check) for check in single_rank.checks if isinstance(check, Drift | Throttled | SharedGpu | NoisyNeighbour)
    ]
    if clock := _lower_clock(single_rank, many):
        found.append(clock)
    if slow := _slow_rank_0(runs.independent):
        found.append(slow)
    if runs.scaling.strong_scaling and runs.single_shard_batch and runs.single_shard_batch.throughput and single_rank.throughput:
        gain = runs.single_shard_batch.throughput.samples_per_s / single_rank.throughput.samples_per_s - 1
        if gain > MAX_EFFICIENCY - 1:
            found.append(SlowWholeBatch(excess_fraction=gain, ranks=runs.world_size))
    return found or [UnknownDoubt()]


def _lower_clock(single_rank: Record, many: Record) -> LowerClock | None:
    single_mhz, all_mhz = (
        fmean(clocks) if (clocks := [row.sm_mhz for row in summarize(each).ranks if row.sm_mhz]) else None for each in (single_rank, many)
    )
    if single_mhz and all_mhz and single_mhz < LOWER_CLOCK_FRACTION * all_mhz:
        return LowerClock(sm_mhz=single_mhz, all_sm_mhz=all_mhz)
    return None


def _slow_rank_0(independent: Record | None) -> SlowRankZero | None:
    """Rank 0, which runs the 1-rank baseline, if it is slower than the other independent ranks; else None."""
    if independent is None:
        return None
    own_ms_by_rank = {rank: fmean(own_ms(timed.traces[rank]) for timed in independent.rounds) for rank in range(independent.world_size)}
    others = fmean(ms for rank, ms in own_ms_by_rank.items() if rank)
    return SlowRankZero(excess_fraction=own_ms_by_rank[0] / others - 1) if own_ms_by_rank[0] * LOWER_CLOCK_FRACTION > others else None
