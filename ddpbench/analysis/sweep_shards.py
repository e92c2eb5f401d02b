"""Merges the shards of a sweep, each of which is a job in its own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ddpbench.record.record import Job

SHARD_SUFFIX = re.compile(r"-part-\d+-of-(?=\d+\.json$)")
"""How the file of a part ends."""

SHARD_GLOB = "-part-*-of-"

JobFile = tuple[Path, Job]
"""A job and where it lies."""


def merge_shards(jobs: Iterable[JobFile]) -> list[JobFile]:
    """Every job, those of one sweep on the same devices and software as one, which lies at what a shell takes for all their files."""
    sweeps: dict[object, list[JobFile]] = {}
    for each in jobs:
        sweeps.setdefault(_sweep_key(each[1]), []).append(each)
    return [_merge_sweep(parts) for parts in sweeps.values()]


def outdated_shards(jobs: Sequence[JobFile]) -> list[JobFile]:
    """The parts that were measured again, in whose place is the later one where they are put together."""
    parts = sorted((each for each in jobs if each[1].sweep_shard), key=lambda part: part[1].started)
    return superseded(parts, key=lambda part: _shard_key(part[1]))


def _shard_key(job: Job) -> Hashable:
    """Equal for jobs that are the same part of one sweep."""
    return job.sweep_shard and tuple(job.sweep_shard.parts), _sweep_key(job)


def _sweep_key(job: Job) -> object:
    """Equal for jobs that are parts of one sweep, and for no others."""
    if job.sweep_shard is None:
        return object()
    place = job.records[0].environment
    return job.sweep_shard.sweep_id, job.sweep_shard.num_parts, place.software, tuple(each.device_name for each in place.placements)


def _merge_sweep(parts: Sequence[JobFile]) -> JobFile:
    """Of a part that was measured twice the later one."""
    (path, first), *others = parts
    if first.sweep_shard is None or not others:
        return path, first
    shared = [(job, job.sweep_shard) for _, job in sorted(parts, key=lambda part: part[1].started) if job.sweep_shard]
    cells = {place: record for job, share in shared for place, record in zip(share.indices, job.records, strict=True)}
    share = msgspec.structs.replace(first.sweep_shard, parts=sorted({number for _, share in shared for number in share.parts}))
    job = msgspec.structs.replace(
        first, started=shared[-1][0].started, sweep_shard=share, records=[cells[place] for place in sorted(cells)]
    )
    return path.with_name(SHARD_SUFFIX.sub(SHARD_GLOB, path.name)), job


Thing = TypeVar("Thing")


def superseded(things: Sequence[Thing], key: Callable[[Thing], Hashable]) -> list[Thing]:
    """Those of ``things``, in their order, in whose place stands a later one with the same ``key``."""
    last = {key(thing): thing for thing in things}
    return [thing for thing in things if last[key(thing)] is not thing]
