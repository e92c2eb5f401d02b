"""One record of several launches: the median figure, the interval that launches really spread over, what any of them warned of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ddpbench.analysis.bottleneck.verdict import find_bottleneck
from ddpbench.analysis.checks.figure import SEVERITY_ORDER
from ddpbench.analysis.judge import estimate_across_launches
from ddpbench.analysis.summary import summarize
from ddpbench.bench.journal import new_job, print_and_write_json, reserve_timestamped_path, save_error_text
from ddpbench.record.errors import BenchError
from ddpbench.record.findings import Check
from ddpbench.record.record import Job, Record, save, slug
from ddpbench.record.request import Request
from ddpbench.report.pages.run import render_run


def merge_launches(request: Request, jobs: Sequence[Job]) -> Job:
    """The job of all launches of ``request``, newer than any of theirs."""
    return new_job(request, [_merge_arm(launches, request.swept) for launches in zip(*(job.records for job in jobs), strict=True)])


def _merge_arm(launches: Sequence[Record], swept: Sequence[str]) -> Record:
    """One arm: the record of its last launch, whose rounds stand for all, or of the first one that did not end well."""
    record = next((record for record in launches if record.status != "ok"), launches[-1])
    times = len(launches)
    record.config = msgspec.structs.replace(record.config, launches=times)
    if record.requested:
        record.requested = msgspec.structs.replace(record.requested, launches=times)
    record.checks = sorted(_merge_checks(launches), key=lambda check: SEVERITY_ORDER.index(check.severity))
    figures = [each.throughput.images_per_s for each in launches if each.throughput]
    if record.status == "ok" and record.throughput and len(figures) == times:
        record.throughput = estimate_across_launches(record.throughput, figures)
    if record.verdict:
        record.verdict = find_bottleneck(record, summarize(record), swept)
    return record


def _merge_checks(launches: Sequence[Record]) -> Iterator[Check]:
    """Every check that spoke of a launch, once, as it spoke of the last one; where not of all, of which."""
    said: dict[tuple[str, str], dict[str, Check]] = {}
    for number, record in enumerate(launches, 1):
        for check in record.checks:
            said.setdefault((check.code, check.severity), {})[str(number)] = check
    for checks in said.values():
        *_, last = checks.values()
        which = f"launch{'es' * (len(checks) > 1)} {', '.join(checks)} of {len(launches)}: " if len(checks) < len(launches) else ""
        yield msgspec.structs.replace(last, sentence=which + last.sentence)


def save_and_print(request: Request, merged: Job) -> bool:
    """Saves the record of all launches and prints its report, which a full disk does not cost; whether all was written."""
    path, unsaved = None, ""
    try:
        path = save_merged(request, merged)
    except BenchError as problem:
        unsaved = problem.message
    return not print_and_write_json(merged, path, request.output, render_run, unsaved)


def save_merged(request: Request, merged: Job) -> Path:
    """Where the record of all launches now lies. Raises BenchError where the disk does not take it."""
    path = reserve_timestamped_path(request, slug(f"{request.arms[0].workload} {request.arms[0].launches} launches"))
    try:
        save(merged, path)
    except OSError as problem:
        path.unlink()
        raise BenchError(save_error_text(path, problem)) from problem
    return path
