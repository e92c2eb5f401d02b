"""What a prediction rests on beside measurements, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot


@dataclass(frozen=True)
class Assumption:
    """``error`` is how far, as a standard deviation of the log of a step, it may be off."""

    text: str
    log_error: float = 0.0


def total_log_error(assumptions: Iterable[Assumption]) -> float:
    """Of all of them: they err independently."""
    return hypot(*[each.log_error for each in assumptions])


class MissingMeasurement(Exception):
    """``what`` has to be measured to answer a question; ``how`` is the command, or what else to do."""

    def __init__(self, what: str, command: str = "") -> None:
        super().__init__(what)
        self.what, self.command = what, command
