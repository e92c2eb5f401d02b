"""Merges several launches into one record: median figure, spread over launches, all checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ddpbench.analysis.checks.rules import most_severe_first
from ddpbench.analysis.judge import find_verdict
from ddpbench.analysis.throughput import estimate_across_launches
from ddpbench.bench.journal import config_in_name, new_job, print_and_write_json, reserve_timestamped_path, save_error_text
from ddpbench.record.checks import AnyCheck
from ddpbench.record.errors import BenchError
from ddpbench.record.io import save, slug
from ddpbench.record.record import Job, Record
from ddpbench.record.request import Request


def merge_launches(request: Request, jobs: Sequence[Job]) -> Job:
    """The job that merges all launches of ``request``, with a start time after theirs."""
    return new_job(request, [_merge_arm(launches, request.swept) for launches in zip(*(job.records for job in jobs), strict=True)])


def _merge_arm(launches: Sequence[Record], swept: Sequence[str]) -> Record:
    """One arm over all launches: the record and rounds of the last launch, or of the first that did not end with status "ok"."""
    record = next((record for record in launches if record.status != "ok"), launches[-1])
    num_launches = len(launches)
    record.config = msgspec.structs.replace(record.config, launches=num_launches)
    if record.requested:
        record.requested = msgspec.structs.replace(record.requested, launches=num_launches)
    record.checks = most_severe_first(_merge_checks(launches))
    throughputs = [launch.throughput.samples_per_s for launch in launches if launch.throughput]
    if record.status == "ok" and record.throughput and len(throughputs) == num_launches:
        record.throughput = estimate_across_launches(record.throughput, throughputs)
    if record.verdict:
        record.verdict, _ = find_verdict(record, swept)
    return record


def _merge_checks(launches: Sequence[Record]) -> Iterator[AnyCheck]:
    """Each check of any launch once, with the numbers of the last launch that has it; lists the launches unless all have it."""
    found: dict[tuple[str, str], dict[int, AnyCheck]] = {}
    for number, record in enumerate(launches, 1):
        for check in record.checks:
            found.setdefault((check.code, check.severity), {})[number] = check
    for checks in found.values():
        *_, last = checks.values()
        yield msgspec.structs.replace(last, launches=[*checks] if len(checks) < len(launches) else [])


def save_and_print(request: Request, merged: Job) -> bool:
    """Save the merged record and print its report; a full disk does not suppress the report. Returns whether all was written."""
    path, save_error = None, ""
    try:
        path = save_merged(request, merged)
    except BenchError as problem:
        save_error = problem.message
    return not print_and_write_json(merged, path, request.output, save_error)


def save_merged(request: Request, merged: Job) -> Path:
    """Save the merged record and return its path. Raises BenchError if it cannot be written."""
    first = config_in_name(request.arms[0], request.output)
    path = reserve_timestamped_path(request, slug(f"{first.workload} {first.launches} launches"))
    try:
        save(merged, path)
    except OSError as problem:
        path.unlink()
        raise BenchError(save_error_text(path, problem)) from problem
    return path
