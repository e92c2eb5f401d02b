"""Sentences with quantities: those of several arms that differ in quantities only become one sentence with their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Quantity:
    """A number in a sentence that may vary from arm to arm. Quantities that print alike are equal."""

    value: float = field(compare=False)
    text: str


Sentence = tuple[str | Quantity, ...]
"""The parts of a sentence, with their spaces. Numbers that must not become a range, such as ranks, are text."""


def sentence_text(sentence: Sentence) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in sentence)


def join_sentences(sentences: Sequence[Sentence]) -> Sentence:
    """One sentence, with semicolons between its clauses."""
    first, *others = sentences
    return (*first, *(part for each in others for part in ("; ", *each)))


def without_quantities(sentence: Sentence) -> Sentence:
    """The words of a sentence: equal for sentences that differ in quantities only."""
    return tuple(part if isinstance(part, str) else "" for part in sentence)


def with_ranges(sentences: Sequence[Sentence]) -> Sentence:
    """One sentence for several that differ in quantities only, with their ranges: ``the rounds vary by 1.2% to 3.0%``."""
    return tuple(map(_range, *sentences)) if len(sentences) > 1 else sentences[0]


def _range(*parts: str | Quantity) -> str | Quantity:
    """The part that all sentences share, or the range of a quantity."""
    varying = [part for part in parts if isinstance(part, Quantity)]
    if len({*parts}) == 1 or not varying:
        return parts[0]
    low, high = (choose(varying, key=lambda quantity: quantity.value) for choose in (min, max))
    return f"{low.text} to {high.text}"


def counted(number: int, noun: str) -> Sentence:
    """A quantity and its noun: ``1 round``, ``1,024 rounds``."""
    return Quantity(number, f"{number:,}"), f" {noun}{'' if number == 1 else 's'}"
