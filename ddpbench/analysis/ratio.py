"""How many times one thing is another, over the rounds that both have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpbench.analysis.evidence import MIN_VALUES_FOR_INTERVAL
from ddpbench.analysis.stats import Interval, log_t_interval


@dataclass(frozen=True)
class PairedRatio(Interval):
    """The geometric mean of the ratios of so many pairs with a paired 95% t-interval on their logs; of too few pairs with their range.

    What is paired shares its luck: two rounds of one process, the luck of its launch. That cancels.
    """

    pairs: int

    @property
    def has_interval(self) -> bool:
        return self.pairs >= MIN_VALUES_FOR_INTERVAL

    @property
    def is_above_one(self) -> bool:
        """Whether an interval says that it is more than 1."""
        return self.has_interval and self.low > 1


def ratio_of(
    base: Sequence[float], other: Sequence[float], interval: Callable[[Sequence[float]], Interval] = log_t_interval
) -> PairedRatio:
    """How many times the ``base`` the paired ``other`` is, by the ``interval`` of the ratios. Needs one pair or more."""
    ratios = [after / before for before, after in zip(base, other, strict=True)]
    if len(ratios) == 1:
        return PairedRatio(ratios[0], ratios[0], ratios[0], 1)
    found = interval(ratios)
    if len(ratios) < MIN_VALUES_FOR_INTERVAL:
        return PairedRatio(found.center, min(ratios), max(ratios), len(ratios))
    return PairedRatio(found.center, found.low, found.high, len(ratios))
