"""Time and memory ratios of two records, and whether they show the published effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.bottleneck.verdict import find_bottleneck
from ddpbench.analysis.stats import Interval, PairedRatio
from ddpbench.analysis.summary import BOTTLENECK_FRACTION, summarize
from ddpbench.record.bottleneck import PhaseShares
from ddpbench.record.record import Record
from ddpbench.report.messages.bottlenecks import compute_share
from ddpbench.report.messages.verdict import explain_verdict

NEGLIGIBLE_EFFECT = 0.05
"""A ratio this near to 1 is no effect: sources with one run each cannot resolve less."""

FAR_FACTOR = 1.25
"""An interval that misses the published factor by more than this many times shows another size of the effect."""

Effect = Literal["less", "none", "more"]


@dataclass(frozen=True)
class PublishedRatio:
    """A published ratio and the same ratio here.

    ``measured`` is None if the job lacks one of the records.
    """

    name: str
    published: float | None
    measured: PairedRatio | None

    @property
    def agrees(self) -> bool | None:
        """Whether the whole interval here shows the published effect; None if unknown."""
        return None if self.published is None or self.measured is None else matches_effect(self.measured, classify_effect(self.published))

    @property
    def is_far(self) -> bool:
        """Whether the published factor lies well outside the interval here."""
        if self.published is None or self.measured is None:
            return False
        return self.published * FAR_FACTOR < self.measured.low or self.published > self.measured.high * FAR_FACTOR

    @property
    def text(self) -> str:
        """``0.98 (0.96 to 1.00)``, ``0.98 (2 rounds: 0.97 to 0.99)``, ``0.98 (1 round)``; three decimals for a narrow interval."""
        if self.measured is None:
            return "-"
        if self.measured.pairs == 1:
            return f"{self.measured.center:.2f} (1 round)"
        half_width = (self.measured.high - self.measured.low) / 2
        places = 3 if half_width < 0.005 else 2
        center, low, high = (f"{value:.{places}f}" for value in (self.measured.center, self.measured.low, self.measured.high))
        rounds = "" if self.measured.has_interval else f"{self.measured.pairs} rounds: "
        return f"{center} ({rounds}{low} to {high})" if low < high else f"{self.measured.center:.2f}"


def classify_effect(ratio: float) -> Effect:
    if abs(ratio - 1) <= NEGLIGIBLE_EFFECT:
        return "none"
    return "more" if ratio > 1 else "less"


def matches_effect(interval: Interval, expected: Effect) -> bool | None:
    """Whether all of ``interval`` shows ``expected``; None if only part does."""
    seen = {classify_effect(edge) for edge in (interval.low, interval.center, interval.high)}
    if seen >= {"less", "more"}:
        seen.add("none")  # the interval spans it
    return True if seen == {expected} else None if expected in seen else False


def all_or_unknown(answers: Iterable[bool | None]) -> bool | None:
    """Whether all hold: False if one does not; None if one is unknown or there are none."""
    values = list(answers)
    if False in values:
        return False
    return None if None in values or not values else True


def data_wait_fraction(record: Record | None) -> float | None:
    """The fraction of a step spent waiting for the loader."""
    return summarize(record).data_wait_fraction if record else None


def describe_bottleneck(record: Record) -> str:
    """The bottleneck in a few words; empty if unknown: ``83% of the step is data wait``."""
    wait_fraction = data_wait_fraction(record)
    if wait_fraction is not None and wait_fraction >= BOTTLENECK_FRACTION:
        return f"{wait_fraction:.0%} of the step is data wait"
    found = find_bottleneck(record, summarize(record))
    if found is None or found.kind == "inconclusive":
        return ""
    if isinstance(found.evidence, PhaseShares):
        return compute_share(found.evidence)
    return explain_verdict(found, record).claim


def explain_ratio(ratio: Interval | None, record: Record | None) -> str:
    """How the bottleneck fits the ratio: ``, because 83% of the step is data wait``."""
    bottleneck = describe_bottleneck(record) if record else ""
    if not bottleneck or ratio is None or record is None:
        return ""
    is_compute_bound = (found := find_bottleneck(record, summarize(record))) is not None and found.kind == "compute-bound"
    if classify_effect(ratio.center) != "none":
        return f" ({bottleneck})"
    return f", although {bottleneck}" if is_compute_bound else f", because {bottleneck}"
