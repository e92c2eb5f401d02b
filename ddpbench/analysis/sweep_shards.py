"""Merge the shards of a sweep, each of which is a job in its own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ddpbench.record.record import Job

SHARD_SUFFIX = re.compile(r"-part-\d+-of-(?=\d+\.json$)")
"""The end of a shard's file name, up to the number of shards."""

SHARD_GLOB = "-part-*-of-"

JobFile = tuple[Path, Job]
"""A job and its file."""


def merge_shards(jobs: Iterable[JobFile]) -> list[JobFile]:
    """All jobs, with the shards of one sweep on the same devices and software merged into one.

    The path of a merged job is a glob pattern that matches the files of all its shards.
    """
    shards_by_sweep: dict[object, list[JobFile]] = {}
    for job_file in jobs:
        shards_by_sweep.setdefault(_sweep_key(job_file[1]), []).append(job_file)
    return [_merge_sweep(shards) for shards in shards_by_sweep.values()]


def outdated_shards(jobs: Sequence[JobFile]) -> list[JobFile]:
    """The shards that were measured again: merging uses the later ones."""
    shards = sorted((each for each in jobs if each[1].sweep_shard), key=lambda part: part[1].started)
    return superseded(shards, key=lambda part: _shard_key(part[1]))


def _shard_key(job: Job) -> Hashable:
    """Equal for jobs that are the same shard of one sweep."""
    return job.sweep_shard and tuple(job.sweep_shard.parts), _sweep_key(job)


def _sweep_key(job: Job) -> object:
    """Equal for jobs that are shards of one sweep, and for no others."""
    if job.sweep_shard is None:
        return object()
    environment = job.records[0].environment
    return (
        job.sweep_shard.sweep_id,
        job.sweep_shard.num_parts,
        environment.software,
        tuple(each.device_name for each in environment.placements),
    )


def _merge_sweep(shards: Sequence[JobFile]) -> JobFile:
    """Merge the shards of one sweep. Of a shard that was measured twice the later one is used."""
    (path, first), *others = shards
    if first.sweep_shard is None or not others:
        return path, first
    shared = [(job, job.sweep_shard) for _, job in sorted(shards, key=lambda part: part[1].started) if job.sweep_shard]
    records = {index: record for job, shard in shared for index, record in zip(shard.indices, job.records, strict=True)}
    shard = msgspec.structs.replace(first.sweep_shard, parts=sorted({number for _, shard in shared for number in shard.parts}))
    job = msgspec.structs.replace(
        first, started=shared[-1][0].started, sweep_shard=shard, records=[records[index] for index in sorted(records)]
    )
    return path.with_name(SHARD_SUFFIX.sub(SHARD_GLOB, path.name)), job


Item = TypeVar("Item")


def superseded(items: Sequence[Item], key: Callable[[Item], Hashable]) -> list[Item]:
    """Those of ``items``, in their order, that a later one with the same ``key`` replaces."""
    last = {key(item): item for item in items}
    return [item for item in items if last[key(item)] is not item]
