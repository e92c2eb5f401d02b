"""``--part K/N``: a sweep shared out among several jobs, of which this is one."""

from __future__ import annotations

import re
import zlib

import msgspec

from ddpbench.record.config import measured
from ddpbench.record.encoded import encoded
from ddpbench.record.errors import UsageError
from ddpbench.record.request import Request
from ddpbench.record.sweep_shard import Share
from ddpbench.record.text import count

PART = re.compile(r"([0-9]+)/([0-9]+)")


def part_of(request: Request, part: str) -> Request:
    """The request with the K-th of its arms and every N-th behind it. Raises UsageError where ``part`` is no K/N, or has no arm."""
    told = PART.fullmatch(part)
    number, of = map(int, told.groups()) if told else (0, 0)
    if not 1 <= number <= of:
        raise UsageError(f"--part cannot be '{part}'", "it takes K/N, such as 1/4: the first of four parts")
    cells = len(request.arms)
    if of > cells:
        raise UsageError(f"--part {part}, and the sweep has {count(cells, 'combination')}", f"at most {count(cells, 'part')}")
    share = Share(numbers=[number], of=of, cells=cells, sweep=_mark(request))
    return msgspec.structs.replace(request, arms=[request.arms[place] for place in share.places], share=share)


def _mark(request: Request) -> str:
    """Follows from what the whole sweep measures."""
    return f"{zlib.crc32(encoded([measured(arm) for arm in request.arms])):08x}"
