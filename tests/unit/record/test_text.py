"""Text of numbers: lists of ranks and rounds."""

from __future__ import annotations

import pytest

from ddpbench.record.text import numbered


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0, 1"),
        ([*range(8)], "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        ([*range(1500)], "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1,492 more"),
    ],
)
def test_numbers_are_listed_up_to_eight(numbers: list[int], text: str) -> None:
    assert numbered("rank", numbers) == text


def test_noun_has_its_plural_and_separator() -> None:
    assert numbered("missing rank", [1, 3], separator=": ") == "missing ranks: 1, 3"
    assert numbered("launch", [2, 3], plural="es") == "launches 2, 3"
