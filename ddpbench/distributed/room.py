"""Memory that does not suffice on one rank: all of them are told, and none waits for it."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.distributed.agreement import Found, all_ranks_or_fail
from ddpbench.distributed.world import World
from ddpbench.record.errors import OutOfMemory


def guard_oom(world: World, context: str, fn: Callable[[], Found]) -> Found:
    """What ``fn`` gives, which waits for no other rank.

    Raises DoesNotFit on every rank where it ran out of memory on one of them, with ``context`` and what was in use and asked for there.
    """

    def shortage(problem: Exception) -> str:
        return world.device.describe_oom(problem) if isinstance(problem, RuntimeError | MemoryError) else ""

    return all_ranks_or_fail(world, fn, shortage, lambda told: OutOfMemory(f"out of memory {context}: {told}", "a smaller batch: -b N"))
