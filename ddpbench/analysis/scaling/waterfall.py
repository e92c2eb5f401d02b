"""From N times one rank down to what all ranks reach: where the images go, each loss by its name, and what has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from ddpbench.analysis.compare import comparable_estimate
from ddpbench.analysis.evidence import MIN_VALUES_FOR_INTERVAL
from ddpbench.analysis.scaling.runs import ScalingRuns, StepMeans, step_means_by_round
from ddpbench.analysis.stats import trimmed_ci, trimmed_mean
from ddpbench.record.record import Record
from ddpbench.record.scaling import INDEPENDENT_RANKS, SINGLE_NO_DDP, SINGLE_SHARD_BATCH

SMALLER_BATCH, CONTENTION, DATA, ALL_REDUCE, STRAGGLER, DDP, RESIDUAL = (
    "smaller batch",
    "contention",
    "data",
    "all-reduce not hidden",
    "straggler",
    "DDP",
    "residual",
)
"""What images are lost to, in the order of the way down.

smaller batch          a rank's share of a batch that is kept takes longer an image than the whole batch on one rank
contention             all ranks at once, each for itself, compute more slowly than one rank on the empty machine
data                   waiting for data and copying them, and for ranks whose data are late; computing more slowly beside the loader
all-reduce not hidden  the wait for other ranks on the rank that waits least: nobody is late any more, gradients are on their way
straggler              what the others wait longer than that one, and not for late data
DDP                    a rank's own time in DDP over that without it, more than on one rank: its all-reduce works beside the backward
residual               what is left, by which the way closes
"""

StepMeansByRun = Mapping[str, Mapping[int, StepMeans]]


@dataclass(frozen=True)
class LossTerm:
    """One loss. ``reach`` is half the width of its 95% interval; None from too few rounds."""

    name: str
    ms_per_step: float  # a step
    images_per_s: float  # below 0 where they are lost
    half_width: float | None
    loss_fraction: float  # of the ideal, a fraction
    ms_by_round: Sequence[float]  # the same a round, in their order

    def exceeds(self, other: LossTerm) -> bool:
        """Whether this loss is surely the greater: by the difference in each round, as two may share a measurement. True of few rounds."""
        more_ms = [ours - theirs for ours, theirs in zip(self.ms_by_round, other.ms_by_round, strict=True)]
        return len(more_ms) < MIN_VALUES_FOR_INTERVAL or trimmed_ci(more_ms).low > 0


@dataclass(frozen=True)
class Waterfall:
    """``terms`` sum to ``measured - ideal``."""

    ideal_images_per_s: float
    measured_images_per_s: float
    terms: list[LossTerm]

    def term(self, name: str) -> LossTerm | None:
        return next((term for term in self.terms if term.name == name), None)

    @property
    def loss_fraction(self) -> float:
        """Of the ideal, a fraction."""
        return 1 - self.measured_images_per_s / self.ideal_images_per_s

    @property
    def largest(self) -> list[LossTerm]:
        """The greatest loss, and behind it the next where the intervals of both leave open which is the greater."""
        first, second = sorted(self.terms, key=lambda term: term.images_per_s)[:2]
        return [first] if first.exceeds(second) else [first, second]


def waterfall(runs: ScalingRuns) -> Waterfall | None:
    """The way down of the rounds that all arms share; None without the first rung's figure, the last's, or such a round.

    Of five rounds or more each loss is a mean without its own least and greatest fifth; what that sets apart is in the residual.

    ``ideal`` and ``measured`` are the figures of their arms, and a loss of so many milliseconds a step is worth the same number of
    images wherever it stands, so that the order of the terms means nothing.
    """
    one, full, last = runs.single_rank, runs.full_world, runs.final
    if not (
        one
        and full
        and last
        and (first := comparable_estimate(one))
        and comparable_estimate(full)
        and (reached := comparable_estimate(last))
    ):
        return None
    needed: dict[str, Record | None] = {
        SINGLE_NO_DDP: runs.single_no_ddp,
        INDEPENDENT_RANKS: runs.independent,
        SINGLE_SHARD_BATCH: runs.single_shard_batch,
    }
    there = {name: record for name, record in needed.items() if record}
    rounds = {name: step_means_by_round(record) for name, record in {**there, "one": one, "full": full, "last": last}.items()}
    shared = sorted(set.intersection(*(set(each) for each in rounds.values())))
    if not shared:
        return None
    lost_ms = {index: _lost_ms(rounds, index, runs) for index in shared}
    ideal, measured = runs.world_size * first.images_per_s, reached.images_per_s
    batch = last.global_batch_size
    a_ms = ideal * measured / (1000 * batch)  # images/s that a millisecond of a step is worth
    terms = [_term(name, [lost_ms[index][name] for index in shared], a_ms, ideal) for name in lost_ms[shared[0]]]
    rest_ms = [_extra_ms(rounds, index, runs) - fsum(lost_ms[index].values()) for index in shared]
    residual = measured - ideal - fsum(term.images_per_s for term in terms)
    return Waterfall(ideal, measured, [*terms, _residual_term(_term(RESIDUAL, rest_ms, a_ms, ideal), residual, a_ms, ideal)])


def _residual_term(rest: LossTerm, residual: float, images_per_s_per_ms: float, ideal: float) -> LossTerm:
    """What closes the way: figures are medians, and may lie as far from the mean of the rounds as this does from ``rest``."""
    reach = None if rest.half_width is None else rest.half_width + abs(residual - rest.images_per_s)
    return replace(
        rest, ms_per_step=-residual / images_per_s_per_ms, images_per_s=residual, loss_fraction=-residual / ideal, half_width=reach
    )


def _extra_ms(rounds: StepMeansByRun, index: int, runs: ScalingRuns) -> float:
    """What a step of all ranks takes longer than it would if nothing were lost."""
    return rounds["last"][index].wall_ms - rounds["one"][index].wall_ms / (runs.world_size if runs.scaling.strong_scaling else 1)


def _lost_ms(rounds: StepMeansByRun, index: int, runs: ScalingRuns) -> dict[str, float]:
    """What each name takes of a step of one round, in ms."""
    at = {name: steps[index] for name, steps in rounds.items()}
    base, last, lost = at.get(SINGLE_SHARD_BATCH, at["one"]), at["last"], {}
    if runs.scaling.strong_scaling and SINGLE_SHARD_BATCH in at:
        lost[SMALLER_BATCH] = base.wall_ms - at["one"].wall_ms / runs.world_size
    if SINGLE_NO_DDP in at and INDEPENDENT_RANKS in at:
        lost[CONTENTION] = at[INDEPENDENT_RANKS].busy_ms - at[SINGLE_NO_DDP].busy_ms
    if runs.with_data:
        lost[DATA] = last.input_ms - base.input_ms + last.peer_data_wait_ms + last.busy_ms - at["full"].busy_ms
    lost[ALL_REDUCE] = last.exposed_comm_ms - base.wait_ms
    lost[STRAGGLER] = last.wait_ms - last.exposed_comm_ms - last.peer_data_wait_ms
    if SINGLE_NO_DDP in at and INDEPENDENT_RANKS in at:
        lost[DDP] = (at["full"].busy_ms - at[INDEPENDENT_RANKS].busy_ms) - (base.busy_ms - at[SINGLE_NO_DDP].busy_ms)
    return lost


def _term(name: str, values_ms: list[float], images_per_s_per_ms: float, ideal: float) -> LossTerm:
    ms = trimmed_mean(values_ms)
    reach = None
    if len(values_ms) >= MIN_VALUES_FOR_INTERVAL:
        within = trimmed_ci(values_ms)
        reach = (within.high - within.low) / 2 * images_per_s_per_ms
    return LossTerm(name, ms, -ms * images_per_s_per_ms, reach, ms * images_per_s_per_ms / ideal, values_ms)
