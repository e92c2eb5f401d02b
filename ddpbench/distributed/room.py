"""Memory that does not suffice on one rank: all of them are told, and none waits for it."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.distributed.agreement import Found, all_or_none
from ddpbench.distributed.world import World
from ddpbench.record.errors import DoesNotFit


def with_room(world: World, where: str, do: Callable[[], Found]) -> Found:
    """What ``do`` gives, which waits for no other rank.

    Raises DoesNotFit on every rank where it ran out of memory on one of them, with ``where`` and what was in use and asked for there.
    """

    def shortage(problem: Exception) -> str:
        return world.device.shortage(problem) if isinstance(problem, RuntimeError | MemoryError) else ""

    return all_or_none(world, do, shortage, lambda told: DoesNotFit(f"out of memory {where}: {told}", "a smaller batch: -b N"))
