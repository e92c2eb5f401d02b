"""One cell against another: how many times as long, as much memory; and whether that is the effect that was published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.bottleneck.verdict import verdict
from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.ratio import Ratio
from ddpbench.analysis.stats import Interval
from ddpbench.analysis.summary import summarise
from ddpbench.record.record import Record

NEGLIGIBLE = 0.05
"""A ratio this near to 1 is no effect: sources of one run each cannot tell less."""

FAR = 1.25
"""An interval that misses a published factor by more than this many times shows another size of the effect."""

Effect = Literal["less", "none", "more"]


@dataclass(frozen=True)
class PublishedRatio:
    """One published ratio, and the same one here; ``here`` is None where the job lacks a cell that it needs."""

    name: str
    published: float | None
    here: Ratio | None

    @property
    def agrees(self) -> bool | None:
        """Whether the whole interval here shows the published effect: less, none or more. None where that cannot be told."""
        return None if self.published is None or self.here is None else shows(self.here, effect(self.published))

    @property
    def is_far(self) -> bool:
        """Whether the published factor lies well beyond the interval here."""
        if self.published is None or self.here is None:
            return False
        return self.published * FAR < self.here.low or self.published > self.here.high * FAR

    @property
    def words(self) -> str:
        """``0.98 (0.96 to 1.00)``, ``0.98 (2 rounds: 0.97 to 0.99)``, ``0.98 (1 round)``; a third decimal where the two ends are near."""
        if self.here is None:
            return "-"
        if self.here.pairs == 1:
            return f"{self.here.center:.2f} (1 round)"
        half_width = (self.here.high - self.here.low) / 2
        places = 3 if half_width < 0.005 else 2
        center, low, high = (f"{value:.{places}f}" for value in (self.here.center, self.here.low, self.here.high))
        rounds = "" if self.here.has_interval else f"{self.here.pairs} rounds: "
        return f"{center} ({rounds}{low} to {high})" if low < high else f"{self.here.center:.2f}"


def effect(ratio: float) -> Effect:
    if abs(ratio - 1) <= NEGLIGIBLE:
        return "none"
    return "more" if ratio > 1 else "less"


def shows(here: Interval, published: Effect) -> bool | None:
    """Whether all of ``here`` is of that effect; None where some of it is."""
    seen = {effect(edge) for edge in (here.low, here.center, here.high)}
    if seen >= {"less", "more"}:
        seen.add("none")  # which lies between them
    return True if seen == {published} else None if published in seen else False


def together(answers: Iterable[bool | None]) -> bool | None:
    """Whether all hold: False where one does not, None where one cannot be told, or where there are none."""
    given = list(answers)
    if False in given:
        return False
    return None if None in given or not given else True


def wait_for_data(record: Record | None) -> float | None:
    """The share of a step that waits for the loader."""
    return summarise(record).data_wait_share if record else None


def limit(record: Record) -> str:
    """What holds a cell back, in a few words: ``83% of the step waits for the loader``; empty where that cannot be told."""
    share = wait_for_data(record)
    if share is not None and share >= BINDING:
        return f"{share:.0%} of the step waits for the loader"
    found = verdict(record, summarise(record))
    return found.says.removesuffix(": healthy") if found and found.kind != "inconclusive" else ""


def explained(here: Interval | None, record: Record | None) -> str:
    """How the limit of a cell goes together with its ratio to another: ``, because 83% of the step waits for the loader``."""
    why = limit(record) if record else ""
    if not why or here is None or record is None:
        return ""
    computes = (found := verdict(record, summarise(record))) is not None and found.kind == "compute-bound"
    if effect(here.center) != "none":
        return f" ({why})"
    return f", although {why}" if computes else f", because {why}"
