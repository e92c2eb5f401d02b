"""Why a layer is faster than its limit in a roofline."""

from __future__ import annotations

MAX_REACHED = 1.05
"""Beyond this fraction of its limit, a layer needs an explanation."""

_FASTER_THAN_LIMIT = "data stayed in a cache, or the device was slower while the limits were measured"

ABOVE_LIMIT = f"above 100%: {_FASTER_THAN_LIMIT}"
"""Below the table of a page."""

ABOVE_ROOF = f"above the roof, or shorter than the limit: {_FASTER_THAN_LIMIT}"
"""In the picture."""
