"""Lookups in the caches of compiled kernels."""

from __future__ import annotations

import pytest

from ddpbench.training.compile_cache import Lookups


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (Lookups(), Lookups(), None),
        (Lookups(2, 1), Lookups(5, 1), "warm"),
        (Lookups(2, 1), Lookups(5, 2, 0.7), "cold"),
    ],
)
def test_state_is_that_of_the_lookups_since_then(before: Lookups, after: Lookups, state: str | None) -> None:
    assert after.since(before).state == state
