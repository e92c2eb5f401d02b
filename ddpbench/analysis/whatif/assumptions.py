"""Assumptions and missing measurements of a prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot


@dataclass(frozen=True)
class Assumption:
    """``log_error`` is its uncertainty, a standard deviation of the log step time."""

    text: str
    log_error: float = 0.0


def total_log_error(assumptions: Iterable[Assumption]) -> float:
    """Combined error of all ``assumptions``, which are independent: the root sum of squares."""
    return hypot(*[each.log_error for each in assumptions])


class MissingMeasurement(Exception):
    """A query needs a measurement that is missing.

    ``what`` names it; ``command`` measures it, empty if no command does.
    """

    def __init__(self, what: str, command: str = "") -> None:
        super().__init__(what)
        self.what, self.command = what, command
