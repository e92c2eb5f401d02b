"""Text as it is shown: figures in a sentence, and names that come from elsewhere."""

from __future__ import annotations


def format_3sig(value: float) -> str:
    """Three significant digits as a sentence has them, without zeros at their end: ``3``, where a table has ``3.00``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def pluralize(number: float, noun: str, plural: str = "s") -> str:
    """``1 round``, ``1,024 rounds``, ``2.5 cores``."""
    told = f"{number:,}" if isinstance(number, int) else format_3sig(number)
    return f"{told} {noun}{'' if told == '1' else plural}"


def printable(text: str) -> str:
    """``text`` on one line, with a space for every control character, line break, bidi override and other non-printable character.

    Bytes of a file name that are not UTF-8 are escaped: ``\\udcfc``.
    """
    decodable = text.encode(errors="backslashreplace").decode()
    return "".join(character if character.isprintable() else " " for character in decodable)
