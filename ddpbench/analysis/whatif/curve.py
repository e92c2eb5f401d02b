"""A quantity that was measured under several loads of the cores, and is read between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_EXTRAPOLATION = 1.25
"""So many times the greatest load under which it was measured, a value is not known any more."""


@dataclass(frozen=True)
class LoadCurve:
    """``points`` are (load, value), the load in threads that want a core, a core; there is one at least."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def from_points(cls, points: Iterable[tuple[float, float]]) -> LoadCurve:
        """Of several values under one load the last holds."""
        return cls(tuple(sorted(dict(points).items())))

    def at(self, load: float) -> float:
        """On the line between the two nearest; outside of them as at the nearest."""
        before = [point for point in self.points if point[0] <= load]
        after = [point for point in self.points if point[0] >= load]
        if not before or not after:
            return (before[-1:] or after)[0][1]
        (left, low), (right, high) = before[-1], after[0]
        return low if right == left else low + (high - low) * (load - left) / (right - left)

    def scaled(self, factor: float) -> LoadCurve:
        return LoadCurve(tuple((load, factor * value) for load, value in self.points))

    def shifted(self, more: float) -> LoadCurve:
        return LoadCurve(tuple((load, value + more) for load, value in self.points))

    def covers(self, load: float) -> bool:
        """Whether ``load`` is not far above those that were measured; more cores than threads are like one a thread."""
        return load <= max(1.0, MAX_EXTRAPOLATION * self.points[-1][0])

    def starts_above(self, load: float) -> bool:
        """Whether it was measured only while threads waited for cores, more of them than ``load`` are."""
        return self.points[0][0] > max(1.0, load)
