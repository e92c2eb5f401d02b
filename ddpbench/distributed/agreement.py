"""What every rank does for itself before they go on together: it succeeds on all of them, or on none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from ddpbench.distributed.world import World
from ddpbench.record.errors import ArmOver

Found = TypeVar("Found")


def all_or_none(
    world: World,
    do: Callable[[], Found],
    why_not: Callable[[Exception], str],
    over: Callable[[str], ArmOver],
    undo: Callable[[Found], object] = lambda found: None,
) -> Found:
    """What ``do`` gives, which waits for no other rank.

    Where it fails on one, it is undone on the others, and every rank raises what ``over`` makes of the reason, or they would wait for
    ever: of the first one on rank 0, of an empty one elsewhere. ``why_not`` words a failure as it stands before ``on rank 0 (host)``;
    one that it has no words for is raised as it is, on this rank alone.
    """
    done: list[Found] = []
    why = ""
    try:
        done.append(do())
    except Exception as problem:
        if not (why := why_not(problem)):
            raise
        why = f"{why} on rank {world.place.rank} ({world.place.host})"
    if why:  # only now, for the exception held on to what its frames had on the device
        gc.collect()
        world.device.release()
    if not world.any(bool(why)):
        return done[0]
    for found in done:
        undo(found)
    raise over(next(filter(None, world.gather(why)), ""))
