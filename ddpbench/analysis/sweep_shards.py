"""The parts of a sweep, each the job of a file of its own, put together."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import msgspec

from ddpbench.analysis.latest_only import superseded
from ddpbench.record.record import Job

PART = re.compile(r"-part-\d+-of-(?=\d+\.json$)")
"""How the file of a part ends."""

ANY = "-part-*-of-"

Found = tuple[Path, Job]
"""A job and where it lies."""


def together(found: Iterable[Found]) -> list[Found]:
    """Every job, those of one sweep on the same devices and software as one, which lies at what a shell takes for all their files."""
    sweeps: dict[object, list[Found]] = {}
    for each in found:
        sweeps.setdefault(_sweep(each[1]), []).append(each)
    return [_whole(parts) for parts in sweeps.values()]


def outdated(found: Sequence[Found]) -> list[Found]:
    """The parts that were measured again, in whose place is the later one where they are put together."""
    parts = sorted((each for each in found if each[1].share), key=lambda part: part[1].started)
    return superseded(parts, key=lambda part: _part(part[1]))


def _part(job: Job) -> Hashable:
    """Equal for jobs that are the same part of one sweep."""
    return job.share and tuple(job.share.numbers), _sweep(job)


def _sweep(job: Job) -> object:
    """Equal for jobs that are parts of one sweep, and for no others."""
    if job.share is None:
        return object()
    place = job.records[0].environment
    return job.share.sweep, job.share.of, place.software, tuple(each.device for each in place.places)


def _whole(parts: Sequence[Found]) -> Found:
    """Of a part that was measured twice the later one."""
    (path, first), *others = parts
    if first.share is None or not others:
        return path, first
    shared = [(job, job.share) for _, job in sorted(parts, key=lambda part: part[1].started) if job.share]
    cells = {place: record for job, share in shared for place, record in zip(share.places, job.records, strict=True)}
    share = msgspec.structs.replace(first.share, numbers=sorted({number for _, share in shared for number in share.numbers}))
    job = msgspec.structs.replace(first, started=shared[-1][0].started, share=share, records=[cells[place] for place in sorted(cells)])
    return path.with_name(PART.sub(ANY, path.name)), job
