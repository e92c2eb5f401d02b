"""From N times one rank down to what all ranks reach: where the images go, each loss by its name, and what has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from ddpbench.analysis.compare import figure
from ddpbench.analysis.evidence import LEAST_FOR_AN_INTERVAL
from ddpbench.analysis.scaling.runs import Arms, Step, steps_of
from ddpbench.analysis.stats import steady_interval, steady_mean
from ddpbench.record.record import Record
from ddpbench.record.scaling import ALONE, APART, SHARE

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

Rounds = Mapping[str, Mapping[int, Step]]


@dataclass(frozen=True)
class Term:
    """One loss. ``reach`` is half the width of its 95% interval; None from too few rounds."""

    name: str
    ms: float  # a step
    images_per_s: float  # below 0 where they are lost
    reach: float | None
    lost: float  # of the ideal, a fraction
    of_rounds_ms: Sequence[float]  # the same a round, in their order

    def exceeds(self, other: Term) -> bool:
        """Whether this loss is surely the greater: by the difference in each round, as two may share a measurement. True of few rounds."""
        more_ms = [ours - theirs for ours, theirs in zip(self.of_rounds_ms, other.of_rounds_ms, strict=True)]
        return len(more_ms) < LEAST_FOR_AN_INTERVAL or steady_interval(more_ms).low > 0


@dataclass(frozen=True)
class Waterfall:
    """``terms`` sum to ``measured - ideal``."""

    ideal: float
    measured: float
    terms: list[Term]

    def term(self, name: str) -> Term | None:
        return next((term for term in self.terms if term.name == name), None)

    @property
    def lost(self) -> float:
        """Of the ideal, a fraction."""
        return 1 - self.measured / self.ideal

    @property
    def greatest(self) -> list[Term]:
        """The greatest loss, and behind it the next where the intervals of both leave open which is the greater."""
        first, second = sorted(self.terms, key=lambda term: term.images_per_s)[:2]
        return [first] if first.exceeds(second) else [first, second]


def waterfall(arms: Arms) -> Waterfall | None:
    """The way down of the rounds that all arms share; None without the first rung's figure, the last's, or such a round.

    Of five rounds or more each loss is a mean without its own least and greatest fifth; what that sets apart is in the residual.

    ``ideal`` and ``measured`` are the figures of their arms, and a loss of so many milliseconds a step is worth the same number of
    images wherever it stands, so that the order of the terms means nothing.
    """
    one, full, last = arms.one, arms.full, arms.last
    if not (one and full and last and (first := figure(one)) and figure(full) and (reached := figure(last))):
        return None
    needed: dict[str, Record | None] = {ALONE: arms.alone, APART: arms.apart, SHARE: arms.share}
    there = {name: record for name, record in needed.items() if record}
    rounds = {name: steps_of(record) for name, record in {**there, "one": one, "full": full, "last": last}.items()}
    shared = sorted(set.intersection(*(set(each) for each in rounds.values())))
    if not shared:
        return None
    lost_ms = {index: _lost_ms(rounds, index, arms) for index in shared}
    ideal, measured = arms.ranks * first.images_per_s, reached.images_per_s
    batch = last.global_batch
    a_ms = ideal * measured / (1000 * batch)  # images/s that a millisecond of a step is worth
    terms = [_term(name, [lost_ms[index][name] for index in shared], a_ms, ideal) for name in lost_ms[shared[0]]]
    rest_ms = [_longer_ms(rounds, index, arms) - fsum(lost_ms[index].values()) for index in shared]
    residual = measured - ideal - fsum(term.images_per_s for term in terms)
    return Waterfall(ideal, measured, [*terms, _closing(_term(RESIDUAL, rest_ms, a_ms, ideal), residual, a_ms, ideal)])


def _closing(rest: Term, residual: float, a_ms: float, ideal: float) -> Term:
    """What closes the way: figures are medians, and may lie as far from the mean of the rounds as this does from ``rest``."""
    reach = None if rest.reach is None else rest.reach + abs(residual - rest.images_per_s)
    return replace(rest, ms=-residual / a_ms, images_per_s=residual, lost=-residual / ideal, reach=reach)


def _longer_ms(rounds: Rounds, index: int, arms: Arms) -> float:
    """What a step of all ranks takes longer than it would if nothing were lost."""
    return rounds["last"][index].wall - rounds["one"][index].wall / (arms.ranks if arms.scaling.strong else 1)


def _lost_ms(rounds: Rounds, index: int, arms: Arms) -> dict[str, float]:
    """What each name takes of a step of one round, in ms."""
    at = {name: steps[index] for name, steps in rounds.items()}
    base, last, lost = at.get(SHARE, at["one"]), at["last"], {}
    if arms.scaling.strong and SHARE in at:
        lost[SMALLER_BATCH] = base.wall - at["one"].wall / arms.ranks
    if ALONE in at and APART in at:
        lost[CONTENTION] = at[APART].busy - at[ALONE].busy
    if arms.with_data:
        lost[DATA] = last.feeding - base.feeding + last.late_data + last.busy - at["full"].busy
    lost[ALL_REDUCE] = last.least_wait - base.wait
    lost[STRAGGLER] = last.wait - last.least_wait - last.late_data
    if ALONE in at and APART in at:
        lost[DDP] = (at["full"].busy - at[APART].busy) - (base.busy - at[ALONE].busy)
    return lost


def _term(name: str, values_ms: list[float], a_ms: float, ideal: float) -> Term:
    ms = steady_mean(values_ms)
    reach = None
    if len(values_ms) >= LEAST_FOR_AN_INTERVAL:
        within = steady_interval(values_ms)
        reach = (within.high - within.low) / 2 * a_ms
    return Term(name, ms, -ms * a_ms, reach, ms * a_ms / ideal, values_ms)
