"""Memory that does not suffice on one rank: all of them are told, and none waits for it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from ddpbench.machine.world import World
from ddpbench.record.errors import DoesNotFit

Found = TypeVar("Found")


def with_room(world: World, where: str, do: Callable[[], Found]) -> Found:
    """What ``do`` gives, which waits for no other rank.

    Raises DoesNotFit on every rank where it ran out of memory on one of them, with ``where`` and what was in use and asked for there.
    """
    done: list[Found] = []
    short = ""
    try:
        done.append(do())
    except (RuntimeError, MemoryError) as problem:
        if not (short := world.device.shortage(problem)):
            raise
    if short:  # only now, for the exception held on to what its frames had on the device
        gc.collect()
        world.device.release()
    if not world.any(bool(short)):
        return done[0]
    place = world.places[world.rank]
    told = world.gather(f"{short} on rank {place.rank} ({place.host})" if short else "")
    first = next(filter(None, told), "")
    raise DoesNotFit(f"out of memory {where}: {first}", "a smaller batch: -b N")
