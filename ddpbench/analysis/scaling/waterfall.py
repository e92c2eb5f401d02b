"""Waterfall from N times one rank to the throughput of all ranks: losses by name, and a residual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from ddpbench.analysis.compare import comparable_estimate
from ddpbench.analysis.scaling.runs import ScalingRuns, StepMeans, step_means_by_round
from ddpbench.analysis.stats import MIN_VALUES_FOR_INTERVAL, trimmed_ci, trimmed_mean
from ddpbench.record.record import Record
from ddpbench.record.scaling_loss import LossName

StepMeansByRun = Mapping[str, Mapping[int, StepMeans]]


@dataclass(frozen=True)
class LossTerm:
    """One loss of the waterfall.

    ``half_width`` is that of its 95% interval, in images/s; None if there are too few rounds.
    """

    name: LossName
    ms_per_step: float  # lost per step
    samples_per_s: float  # negative for a loss
    half_width: float | None
    loss_fraction: float  # of the ideal
    ms_by_round: Sequence[float]  # ``ms_per_step`` of each round, in order

    def exceeds(self, other: LossTerm) -> bool:
        """Whether this loss is larger beyond the noise.

        True if there are too few rounds. Paired by round: two may share a measurement.
        """
        more_ms = [own - other_ms for own, other_ms in zip(self.ms_by_round, other.ms_by_round, strict=True)]
        return len(more_ms) < MIN_VALUES_FOR_INTERVAL or trimmed_ci(more_ms).low > 0


@dataclass(frozen=True)
class Waterfall:
    """The ``samples_per_s`` of ``terms`` sum to measured minus ideal."""

    ideal_samples_per_s: float
    measured_samples_per_s: float
    terms: list[LossTerm]

    def term(self, name: LossName) -> LossTerm | None:
        return next((term for term in self.terms if term.name == name), None)

    @property
    def loss_fraction(self) -> float:
        """Total loss as a fraction of the ideal."""
        return 1 - self.measured_samples_per_s / self.ideal_samples_per_s

    @property
    def largest(self) -> list[LossTerm]:
        """The largest loss, followed by the second if their difference is within the noise."""
        first, second = sorted(self.terms, key=lambda term: term.samples_per_s)[:2]
        return [first] if first.exceeds(second) else [first, second]


def waterfall(runs: ScalingRuns) -> Waterfall | None:
    """Compute the waterfall over the rounds that all arms share.

    None without such a round, or without the throughput of one rank, of the whole world or of the final run. From five rounds on each
    loss is a mean without its lowest and highest fifth; the difference that this makes is in the residual.

    Ideal and measured are the throughput of their arms. A millisecond per step is worth the same images/s in every term, so the order
    of the terms has no effect.
    """
    one, full, last = runs.single_rank, runs.full_world, runs.final
    if not (
        one
        and full
        and last
        and (one_estimate := comparable_estimate(one))
        and comparable_estimate(full)
        and (last_estimate := comparable_estimate(last))
    ):
        return None
    needed: dict[str, Record | None] = {
        "single_no_ddp": runs.single_no_ddp,
        "independent": runs.independent,
        "single_shard_batch": runs.single_shard_batch,
    }
    arms = {name: record for name, record in needed.items() if record}
    rounds = {name: step_means_by_round(record) for name, record in {**arms, "one": one, "full": full, "last": last}.items()}
    shared = sorted(set.intersection(*(set(each) for each in rounds.values())))
    if not shared:
        return None
    lost_ms = {index: _lost_ms(rounds, index, runs) for index in shared}
    ideal, measured = runs.world_size * one_estimate.samples_per_s, last_estimate.samples_per_s
    batch = last.global_batch_size
    samples_per_s_per_ms = ideal * measured / (1000 * batch)  # images/s per millisecond of a step
    terms = [_term(name, [lost_ms[index][name] for index in shared], samples_per_s_per_ms, ideal) for name in lost_ms[shared[0]]]
    residual_ms = [_extra_ms(rounds, index, runs) - fsum(lost_ms[index].values()) for index in shared]
    residual = measured - ideal - fsum(term.samples_per_s for term in terms)
    return Waterfall(
        ideal,
        measured,
        [*terms, _residual_term(_term("residual", residual_ms, samples_per_s_per_ms, ideal), residual, samples_per_s_per_ms, ideal)],
    )


def _residual_term(rest: LossTerm, residual: float, samples_per_s_per_ms: float, ideal: float) -> LossTerm:
    """The residual term.

    Its interval is wider than that of ``rest`` by their difference: throughputs are medians, ``rest`` is a mean.
    """
    half_width = None if rest.half_width is None else rest.half_width + abs(residual - rest.samples_per_s)
    return replace(
        rest, ms_per_step=-residual / samples_per_s_per_ms, samples_per_s=residual, loss_fraction=-residual / ideal, half_width=half_width
    )


def _extra_ms(rounds: StepMeansByRun, index: int, runs: ScalingRuns) -> float:
    """Milliseconds by which a step of the final run exceeds the ideal."""
    return rounds["last"][index].wall_ms - rounds["one"][index].wall_ms / (runs.world_size if runs.scaling.strong_scaling else 1)


def _lost_ms(rounds: StepMeansByRun, index: int, runs: ScalingRuns) -> dict[LossName, float]:
    """Milliseconds per step of one round that each named loss costs."""
    at = {name: steps[index] for name, steps in rounds.items()}
    base, last = at.get("single_shard_batch", at["one"]), at["last"]
    lost: dict[LossName, float] = {}
    if runs.scaling.strong_scaling and "single_shard_batch" in at:
        lost["smaller-batch"] = base.wall_ms - at["one"].wall_ms / runs.world_size
    if "single_no_ddp" in at and "independent" in at:
        lost["contention"] = at["independent"].busy_ms - at["single_no_ddp"].busy_ms
    if runs.with_data:
        lost["data"] = last.input_ms - base.input_ms + last.peer_data_wait_ms + last.busy_ms - at["full"].busy_ms
    lost["exposed-comm"] = last.exposed_comm_ms - base.wait_ms
    lost["straggler"] = last.wait_ms - last.exposed_comm_ms - last.peer_data_wait_ms
    if "single_no_ddp" in at and "independent" in at:
        lost["ddp"] = (at["full"].busy_ms - at["independent"].busy_ms) - (base.busy_ms - at["single_no_ddp"].busy_ms)
    return lost


def _term(name: LossName, values_ms: list[float], samples_per_s_per_ms: float, ideal: float) -> LossTerm:
    ms = trimmed_mean(values_ms)
    half_width = None
    if len(values_ms) >= MIN_VALUES_FOR_INTERVAL:
        interval = trimmed_ci(values_ms)
        half_width = (interval.high - interval.low) / 2 * samples_per_s_per_ms
    return LossTerm(name, ms, -ms * samples_per_s_per_ms, half_width, ms * samples_per_s_per_ms / ideal, values_ms)
