"""Sentences with quantities: those of several arms that differ in one quantity become one sentence with its range."""

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


def with_range(sentences: Sequence[Sentence]) -> Sentence | None:
    """One sentence for several, with the range of the only quantity in which they differ: ``the rounds vary by 1.2% to 3.0%``.

    None if they differ in anything else, or not at all.
    """
    if len({len(each) for each in sentences}) > 1:
        return None
    places = [place for place, parts in enumerate(zip(*sentences, strict=True)) if len({*parts}) > 1]
    if len(places) != 1:
        return None
    (place,), first = places, sentences[0]
    varying = [part for each in sentences if isinstance(part := each[place], Quantity)]
    if len(varying) < len(sentences):
        return None
    low, high = (choose(varying, key=lambda quantity: quantity.value) for choose in (min, max))
    return (*first[:place], f"{low.text} to {high.text}", *first[place + 1 :])


def counted(number: int, noun: str) -> Sentence:
    """A quantity and its noun: ``1 round``, ``1,024 rounds``."""
    return Quantity(number, f"{number:,}"), f" {noun}{'' if number == 1 else 's'}"
