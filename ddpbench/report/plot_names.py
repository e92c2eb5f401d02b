"""File names of plots: workload, devices, metric, and what varies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddpbench.record.io import slug

MAX_NAMED_FIELDS = 3
"""Of more fields that vary, a file name says only ``settings``."""

MAX_LENGTH = 180
"""The longest file name without number and suffix; file systems allow 255 bytes."""


class PlotNames:
    """The names of the plots that are written together; each is used once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def reserve(self, *parts: str) -> str:
        """The file name with these parts, without suffix; a second one of that name ends in a number."""
        stem = slug(" ".join(parts))[:MAX_LENGTH].rstrip("-")
        name, number = stem, 1
        while name in self._used:
            number += 1
            name = f"{stem}-{number}"
        self._used.add(name)
        return name


def device_part(devices: Iterable[str]) -> str:
    """The names of devices without trademarks: ``4x H200``, ``Intel Xeon``."""
    short = (re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", "", name, flags=re.IGNORECASE) for name in devices)
    return " ".join(dict.fromkeys(re.sub(r"^(\d+) x ", r"\1x ", name) for name in short))


def varied_part(fields: Sequence[str]) -> str:
    """``by batch-size and precision``; ``settings`` for many fields, but never for the batch size, which is the axis."""
    named = list(fields)
    if len(fields) > MAX_NAMED_FIELDS:
        named = [*(field for field in fields if field == "batch_size"), "settings"]
    return f"by {' and '.join(named)}" if named else ""
