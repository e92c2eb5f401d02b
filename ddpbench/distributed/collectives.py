"""Runs a function on all ranks, or fails on all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from ddpbench.distributed.world import World
from ddpbench.record.errors import ConfigFailed, OutOfMemory


def guard_oom(world: World, context: str, fn: Callable[[], Found]) -> Found:
    """What ``fn`` gives, which waits for no other rank.

    Raises DoesNotFit on every rank where it ran out of memory on one of them, with ``context`` and what was in use and asked for there.
    """

    def shortage(problem: Exception) -> str:
        return world.device.describe_oom(problem) if isinstance(problem, RuntimeError | MemoryError) else ""

    return all_ranks_or_fail(world, fn, shortage, lambda told: OutOfMemory(f"out of memory {context}: {told}", "a smaller batch: -b N"))


Found = TypeVar("Found")


def all_ranks_or_fail(
    world: World,
    fn: Callable[[], Found],
    describe_failure: Callable[[Exception], str],
    make_error: Callable[[str], ConfigFailed],
    undo: Callable[[Found], object] = lambda found: None,
) -> Found:
    """What ``fn`` gives, which waits for no other rank.

    Where it fails on one, it is undone on the others, and every rank raises what ``make_error`` makes of the reason, or they would wait for
    ever: of the first one on rank 0, of an empty one elsewhere. ``describe_failure`` words a failure as it stands before ``on rank 0
    (host)``; one that it has no words for is raised as it is, on this rank alone.
    """
    done: list[Found] = []
    why = ""
    try:
        done.append(fn())
    except Exception as problem:
        if not (why := describe_failure(problem)):
            raise
        why = f"{why} on rank {world.placement.rank} ({world.placement.host})"
    if why:  # only now, for the exception held on to what its frames had on the device
        gc.collect()
        world.device.empty_cache()
    if not world.any_rank(bool(why)):
        return done[0]
    for found in done:
        undo(found)
    raise make_error(next(filter(None, world.gather(why)), ""))
