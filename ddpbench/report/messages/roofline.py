"""What a roofline says: how near a step is to the limits of its device, and why a layer is faster than its limit."""

from __future__ import annotations

from ddpbench.analysis.roofline import layer_rows, sum_rows
from ddpbench.record.roofline import Roofline

MAX_REACHED = 1.05
"""Beyond this fraction of its limit, a layer needs an explanation."""

_FASTER_THAN_LIMIT = "data stayed in a cache, or the device was slower while the limits were measured"

ABOVE_LIMIT = f"above 100%: {_FASTER_THAN_LIMIT}"
"""Below the table of a page."""

ABOVE_ROOF = f"above the roof, or shorter than the limit: {_FASTER_THAN_LIMIT}"
"""In the picture."""


def reached_text(roofline: Roofline) -> str:
    """``61% of the measured limits of this GPU: the layers take 21.3 ms of a step, and need 13.1``.

    Layers are those of the model: what the rest of a step needs at least is not known.
    """
    step = sum_rows("model", [row for row in layer_rows(roofline) if row.kind])
    times = f"the layers take {step.ms:.3g} ms of a step, and need {step.limit_ms:.3g}"
    return f"{step.limit_ms / step.ms:.0%} of the measured limits of this GPU: {times}"
