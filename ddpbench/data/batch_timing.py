"""How batches came, from when each was asked for, made and there: the arithmetic behind a Loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from statistics import fmean
from time import perf_counter

from ddpbench.data.loader import Sheet
from ddpbench.record.loader_stats import Loading, by_stage

STOOD_S = 1e-3
"""A trainer that was longer at the loader stood waiting; taking a batch that is ready out of a queue is a matter of 0.1 ms."""


@dataclass(frozen=True)
class Arrival:
    """One batch: when the trainer asked for it, when it had it, and what its worker tells."""

    asked: float
    arrived: float
    images: int
    sheet: Sheet

    @property
    def wait_s(self) -> float:
        """How long the trainer stood waiting; 0 where it took what was ready."""
        stood_s = self.arrived - self.asked
        return stood_s if stood_s > STOOD_S else 0.0

    @property
    def hand_over_s(self) -> float:
        """The part of the wait in which the batch was made already."""
        return self.arrived - max(self.asked, self.sheet.ended)


class Arrivals:
    """The batches that came since somebody asked about them."""

    def __init__(self) -> None:
        self._since: list[Arrival] = []

    def note(self, asked: float, images: int, sheet: Sheet) -> None:
        """A batch of so many ``images`` is there now."""
        self._since.append(Arrival(asked, perf_counter(), images, sheet))

    def told(self) -> Loading | None:
        """What the workers did for them; None where none came. The next ones are told of by themselves."""
        since, self._since = self._since, []
        return told(since) if since else None


def told(arrivals: Sequence[Arrival]) -> Loading:
    """What the workers did for the batches that arrived, in this order."""
    sheets = [arrival.sheet for arrival in arrivals]
    stood_for = [arrival.hand_over_s for arrival in arrivals if arrival.wait_s]
    return Loading(
        images=sum(arrival.images for arrival in arrivals),
        cpu_s=by_stage(sheet.cpu_s for sheet in sheets),
        wall_s=by_stage(sheet.wall_s for sheet in sheets),
        queued_s=None if any(sheet.queued_s is None for sheet in sheets) else sum(sheet.queued_s or 0.0 for sheet in sheets),
        batch_ms=[1e3 * (sheet.ended - sheet.began) for sheet in sheets],
        hand_over_ms=1e3 * fmean(stood_for) if stood_for else None,
        head_of_line=head_of_line(arrivals),
        left_out=[problem.message for sheet in sheets for problem in sheet.left_out],
    )


def head_of_line(arrivals: Sequence[Arrival]) -> float | None:
    """The share of all waiting in which the batch whose turn it was was not made yet, and a later one was; None without a wait.

    None too where nobody tells what was done to a batch: its end is then known only from its turn, and no later one comes before it.
    Of the last batches nobody knows yet which later ones were made: of a round of many the share is a little too small.
    """
    waited_s = sum(arrival.wait_s for arrival in arrivals)
    if not waited_s or not any(arrival.sheet.cpu_s for arrival in arrivals):
        return None
    first_of_later = list(accumulate((arrival.sheet.ended for arrival in reversed(arrivals)), min, initial=inf))[-2::-1]
    blocked_s = (
        max(0.0, min(arrival.arrived, arrival.sheet.ended) - max(arrival.asked, later))
        for arrival, later in zip(arrivals, first_of_later, strict=True)
        if arrival.wait_s
    )
    return sum(blocked_s) / waited_s
