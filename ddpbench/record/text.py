"""Formatting of numbers in sentences, and of untrusted text."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NUMBERED = 8


def format_3sig(value: float) -> str:
    """``value`` with three significant digits, without trailing zeros: ``3``, not ``3.00`` as in tables."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def pluralize(number: float, noun: str, plural: str = "s") -> str:
    """Number and noun: ``1 round``, ``1,024 rounds``, ``2.5 cores``."""
    digits = f"{number:,}" if isinstance(number, int) else format_3sig(number)
    return f"{digits} {noun}{'' if digits == '1' else plural}"


def numbered(noun: str, numbers: Sequence[int], separator: str = " ", plural: str = "s") -> str:
    """Noun and numbers, of many only the first ones: ``rank 1``, ``rounds 2, 3``, ``ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more``."""
    named = ", ".join(map(str, numbers[:MAX_NUMBERED]))
    more = f" and {len(numbers) - MAX_NUMBERED:,} more" if len(numbers) > MAX_NUMBERED else ""
    return f"{noun}{'' if len(numbers) == 1 else plural}{separator}{named}{more}"


def printable(text: str) -> str:
    """``text`` on one line, with spaces for non-printable characters such as line breaks, controls and bidi overrides.

    Bytes of a file name that are not UTF-8 are escaped: ``\\udcfc``.
    """
    decodable = text.encode(errors="backslashreplace").decode()
    return "".join(character if character.isprintable() else " " for character in decodable)
