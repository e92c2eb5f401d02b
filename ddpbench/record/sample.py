"""A few of many values in a row, where not all of them can be kept."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TypeVar

Value = TypeVar("Value")

GOLDEN_RATIO_CONJUGATE = (sqrt(5) - 1) / 2
"""Of all fractions the one whose multiples fall least into step with anything."""


def subsample(every: int, values: Sequence[Value]) -> list[Value]:
    """One of every ``every`` values, each time at another place among them, the same for all lists of one length.

    What comes back every few steps, as the bursts of loader workers do, is then as frequent among them as among all: of every fourth
    step of a loader with four workers either all are late or none.
    """
    groups = (values[begin : begin + every] for begin in range(0, len(values), every))
    return [group[int(len(group) * (number * GOLDEN_RATIO_CONJUGATE % 1))] for number, group in enumerate(groups)]
