"""``--part K/N``: a sweep shared out among several jobs, of which this is one."""

from __future__ import annotations

import re
import zlib

import msgspec

from ddpbench.record.config import measurement_config
from ddpbench.record.encoded import encode_json
from ddpbench.record.errors import UsageError
from ddpbench.record.request import Request
from ddpbench.record.sweep_shard import SweepShard
from ddpbench.record.text import pluralize

SHARD_PATTERN = re.compile(r"([0-9]+)/([0-9]+)")


def select_shard(request: Request, text: str) -> Request:
    """The request with the K-th of its arms and every N-th behind it. Raises UsageError where ``text`` is no K/N, or has no arm."""
    told = SHARD_PATTERN.fullmatch(text)
    number, of = map(int, told.groups()) if told else (0, 0)
    if not 1 <= number <= of:
        raise UsageError(f"--part cannot be '{text}'", "it takes K/N, such as 1/4: the first of four parts")
    cells = len(request.arms)
    if of > cells:
        raise UsageError(f"--part {text}, and the sweep has {pluralize(cells, 'combination')}", f"at most {pluralize(cells, 'part')}")
    share = SweepShard(parts=[number], num_parts=of, num_sweep_points=cells, sweep_id=_sweep_id(request))
    return msgspec.structs.replace(request, arms=[request.arms[place] for place in share.indices], sweep_shard=share)


def _sweep_id(request: Request) -> str:
    """Follows from what the whole sweep measures."""
    return f"{zlib.crc32(encode_json([measurement_config(arm) for arm in request.arms])):08x}"
