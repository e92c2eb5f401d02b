"""How much of its communication a step hides, from the kernels of all ranks side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from ddpbench.record.scaling import CommKernel, Overlap


def measure_overlap(ranks: Sequence[Sequence[CommKernel]], steps: int) -> Overlap | None:
    """Each kernel as it was where it was shortest: that rank began it last, and waited for nobody.

    ``ranks`` hold the same kernels of so many steps, in order. None where they do not, or hold none.
    """
    if len({len(kernels) for kernels in ranks}) != 1 or not ranks[0]:
        return None
    sent = [min(same, key=lambda kernel: kernel.duration_ms) for same in zip(*ranks, strict=True)]
    return Overlap(
        communication_ms=fsum(each.duration_ms for each in sent) / steps, exposed_ms=fsum(each.exposed_ms for each in sent) / steps
    )
