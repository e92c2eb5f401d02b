"""Lookups in the caches of compiled kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddpbench.training.compile_cache import Lookups, count_triton_lookups, lookups


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


@pytest.mark.parametrize(("module", "counted"), [("ddpbench.kernels.forward", 1), ("torch._inductor.runtime.hints", 0)])
def test_kernels_that_inductor_compiles_with_triton_are_not_counted_as_fused(module: str, counted: int) -> None:
    triton = pytest.importorskip("triton")
    count_triton_lookups()
    before = lookups()
    triton.knobs.compilation.listener(
        src=SimpleNamespace(fn=SimpleNamespace(__module__=module)), times=SimpleNamespace(total=2_000_000), cache_hit=False
    )
    since = lookups().since(before)
    assert (since.misses, since.compile_s) == (counted, 2.0 * counted)
