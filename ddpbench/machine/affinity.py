"""Which processor cores this rank computes and loads on."""

from __future__ import annotations

import os
from contextlib import suppress

GRANTED = sorted(os.sched_getaffinity(0))


def keep_to(cores: int | None, local_rank: int) -> None:
    """Moves every thread of this process to ``cores`` of those it was given, other ranks' apart; with None back to all of them.

    Processes that start from now on, loader workers above all, keep to them too.
    """
    own = GRANTED if cores is None else GRANTED[local_rank * cores : (local_rank + 1) * cores]
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), own)
