"""Which processor cores this rank computes and loads on."""

from __future__ import annotations

import os
from contextlib import suppress

INITIAL_AFFINITY = sorted(os.sched_getaffinity(0))


def set_affinity(num_cores: int | None, local_rank: int) -> None:
    """Moves every thread of this process to ``num_cores`` of those it was given, other ranks' apart; with None back to all of them.

    Processes that start from now on, loader workers above all, keep to them too.
    """
    own = INITIAL_AFFINITY if num_cores is None else INITIAL_AFFINITY[local_rank * num_cores : (local_rank + 1) * num_cores]
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), own)
