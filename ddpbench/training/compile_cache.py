"""Whether kernels were compiled for a training, or found in the caches of torch.compile and Triton on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Lookups:
    """Lookups in the caches so far. ``compile_s`` is the time in which Triton compiled fused kernels."""

    hits: int = 0
    misses: int = 0
    compile_s: float = 0.0

    def since(self, before: Lookups) -> Lookups:
        return Lookups(self.hits - before.hits, self.misses - before.misses, self.compile_s - before.compile_s)

    @property
    def state(self) -> Literal["cold", "warm"] | None:
        """``warm`` if every kernel was in its cache, ``cold`` if one was not, None if none was needed."""
        return "cold" if self.misses else "warm" if self.hits else None


_of_triton = Lookups()


def count_triton_lookups() -> None:
    """Count from now on which fused kernels Triton compiles in this process."""
    import triton

    triton.knobs.compilation.listener = _count


def _count(*, src: Any, times: Any, cache_hit: bool, **_: object) -> None:
    global _of_triton
    if not getattr(getattr(src, "fn", None), "__module__", "").startswith("ddpbench."):
        return  # inductor compiles with Triton, too, and counts itself
    found = replace(_of_triton, hits=_of_triton.hits + 1) if cache_hit else replace(_of_triton, misses=_of_triton.misses + 1)
    _of_triton = found if cache_hit else replace(found, compile_s=found.compile_s + times.total / 1e6)


def lookups() -> Lookups:
    """Lookups of this process so far, in both caches."""
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        return _of_triton
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return replace(
        _of_triton, hits=_of_triton.hits + inductor["fxgraph_cache_hit"], misses=_of_triton.misses + inductor["fxgraph_cache_miss"]
    )
