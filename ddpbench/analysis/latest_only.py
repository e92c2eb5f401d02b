"""What was measured again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


def superseded(things: Sequence[Thing], key: Callable[[Thing], Hashable]) -> list[Thing]:
    """Those of ``things``, in their order, in whose place stands a later one with the same ``key``."""
    last = {key(thing): thing for thing in things}
    return [thing for thing in things if last[key(thing)] is not thing]
