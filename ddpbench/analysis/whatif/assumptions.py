"""Assumptions and missing measurements of a prediction."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

from ddpbench.record.prediction import Assumption, MissingMeasurement


def total_log_error(assumptions: Iterable[Assumption]) -> float:
    """Combined error of all ``assumptions``, which are independent: the root sum of squares."""
    return hypot(*[each.log_error for each in assumptions])


class MissingMeasurementError(Exception):
    """A query needs a measurement that is missing; ``command`` measures it, empty if no command does."""

    def __init__(self, missing: MissingMeasurement, command: str = "") -> None:
        super().__init__(missing)
        self.missing, self.command = missing, command
