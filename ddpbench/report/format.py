"""Numbers as text, without digits that the measurement does not support; ``-`` if unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "-"
MIN_FIXED_POINT = 1e-4


def format_interval(center: float, low: float, high: float, width_digits: int = 2) -> tuple[str, str, str]:
    """``center``, ``low`` and ``high`` with the digits that the interval supports.

    Half the width keeps ``width_digits`` significant digits, two at most (Guide to the Expression of Uncertainty in Measurement,
    JCGM 100:2008, 7.2.6), and a further one if ``center`` would equal one of the ends. ``center`` keeps at least two, and at most four if
    it has decimals. Without a width each has four.
    """
    half_width = (high - low) / 2
    if half_width <= 0:
        return format_rounded(center, 4), format_rounded(low, 4), format_rounded(high, 4)
    most, least = max(0, _decimals(center, 4)), _decimals(center, 2)
    decimals = max(least, min(_decimals(half_width, width_digits), most))
    if low < center < high and round(center, decimals) in (round(low, decimals), round(high, decimals)):
        decimals = min(decimals + 1, most)
    return format_decimals(center, decimals), format_decimals(low, decimals), format_decimals(high, decimals)


def format_with_interval(center: float, low: float, high: float, unit: str = "", width_digits: int = 2) -> str:
    """``40.9 (38.4 to 43.6)``, with ``unit`` right after the center."""
    shown = format_interval(center, low, high, width_digits)
    return f"{shown[0]}{unit} ({shown[1]} to {shown[2]})"


def format_significant(value: float | None, digits: int = 3) -> str:
    """``value`` with that many significant digits.

    Whole numbers are never rounded; tiny values have an exponent.
    """
    if value is None:
        return MISSING
    if 0 < abs(value) < MIN_FIXED_POINT:
        return f"{value:.{digits - 1}e}"
    return format_decimals(value, max(0, _decimals(value, digits)))


def format_s_as_ms(seconds: float) -> str:
    return format_significant(1000 * seconds, 2)


def format_rounded(value: float, digits: int = 3) -> str:
    """``value`` rounded to that many significant digits, before the point too: 17,696 is 17,700."""
    return format_decimals(value, _decimals(value, digits))


def format_decimals(value: float | None, decimals: int) -> str:
    """``value`` with commas and that many decimals; negative ``decimals`` round to tens, hundreds ..."""
    if value is None:
        return MISSING
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def format_summands(parts: Sequence[float], decimals: int) -> list[str]:
    """``parts`` as text, rounded so that the printed parts add up to their rounded sum.

    Each is the difference of two rounded running sums, so it is off by at most one unit in its last digit.
    """
    printed: list[str] = []
    total = 0.0
    for part in parts:
        printed.append(format_decimals(round(total + part, decimals) - round(total, decimals), decimals))
        total += part
    return printed


def step_decimals(step_ms: float) -> int:
    """Decimals for a table of milliseconds whose largest entry is ``step_ms``.

    Four significant digits, at least one decimal.
    """
    return min(max(_decimals(step_ms, 4), 1), 3)


def format_percent(fraction: float | None, digits: int = 3) -> str:
    return MISSING if fraction is None else f"{format_significant(100 * fraction, digits)}%"


def format_gib(size_bytes: int | None) -> str:
    """Bytes as GiB, without the unit."""
    if size_bytes is None:
        return MISSING
    return format_decimals(size_bytes / 2**30, 1 if size_bytes >= 2**30 else 2)


def _decimals(value: float, digits: int) -> int:
    """Decimals that give ``value`` that many significant digits; negative to round digits before the point."""
    return digits - 1 - _exponent(value)


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
