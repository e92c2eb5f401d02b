"""The table of the runs in a folder: figure, verdict, and what differs from the run before of the same training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from rich.text import Text

from ddpbench.record.config import Config
from ddpbench.record.flags import flag_fields
from ddpbench.record.run_list import ListedRecord, ListedRun, RunFile
from ddpbench.report.format import MISSING, format_interval
from ddpbench.report.layout import LABEL, Page, align_columns, styled, wrap_text

SortKey = Literal["time", "workload", "figure", "verdict"]

MAX_CHANGES = 4
"""Changes that a row names."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the table, and in its JSON and CSV."""

    started: str  # UTC, ISO 8601
    job: str
    workload: str  # or script
    status: str
    samples_per_s: float | None = None  # of several arms, that of the fastest
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None
    verdict: str = ""
    cause: str = ""
    changes: list[str] = []  # from the run before of the same workload or script
    record: str


MEASURED_OF_SCRIPTS = ("rounds", "steps", "threads")
"""Fields that are no settings in the record of a script, but what was observed."""


@dataclass(frozen=True)
class _Seen:
    """What a later run of the same training is compared with."""

    record: ListedRecord
    command: Sequence[str]


def run_rows(files: Sequence[RunFile], sort: SortKey = "time") -> list[RunRow]:
    """One row per run of ``files``, which are oldest first; sorted by ``sort``."""
    before: dict[tuple[str, str], _Seen] = {}
    rows = []
    for path, run in files:
        record = run.main
        key = (run.kind, record.config.workload)
        rows.append(
            _row(str(path), run, record, _changes(before[key], record, run.command) if key in before and _has_trained(record) else [])
        )
        if _has_trained(record):
            before[key] = _Seen(record, run.command)
    match sort:
        case "workload":
            return sorted(rows, key=lambda row: row.workload)
        case "figure":
            return sorted(rows, key=lambda row: -(row.samples_per_s or 0.0))
        case "verdict":
            return sorted(rows, key=lambda row: (row.verdict, row.cause))
        case _:
            return rows


def _row(path: str, run: ListedRun, record: ListedRecord, changes: list[str]) -> RunRow:
    has_arms = bool(run.swept)
    fastest = max((each for each in run.records if each.throughput), key=_samples_per_s, default=None) if has_arms else record
    figure = fastest.throughput if fastest else None
    verdict = run.scaling.verdict if run.scaling else None if has_arms else record.verdict
    return RunRow(
        started=run.started,
        job=run.kind,
        workload=record.config.workload,
        status=next((each.status for each in run.records if each.status != "ok"), "ok"),
        samples_per_s=figure.samples_per_s if figure else None,
        samples_per_s_low=figure.low if figure and figure.rounds > 1 else None,
        samples_per_s_high=figure.high if figure and figure.rounds > 1 else None,
        verdict=f"{len(run.records)} arms" if has_arms else verdict.kind if verdict else "",
        cause=(verdict.cause or "") if verdict else "",
        changes=changes,
        record=path,
    )


def _samples_per_s(record: ListedRecord) -> float:
    return record.throughput.samples_per_s if record.throughput else 0.0


def _changes(before: _Seen, record: ListedRecord, command: Sequence[str]) -> list[str]:
    """What differs: settings, then the machine, then other words of the command."""
    old, new = before.record, record
    fields = [field for field in flag_fields(Config) if new.script is None or field.name not in MEASURED_OF_SCRIPTS]
    found = [
        f"{field.option.lstrip('-')} {getattr(old.config, field.name)} -> {getattr(new.config, field.name)}"
        for field in fields
        if getattr(old.config, field.name) != getattr(new.config, field.name)
    ]
    places = [
        ("ranks", old.environment.world_size, new.environment.world_size),
        ("device", _device(old), _device(new)),
        ("torch", old.environment.software.torch, new.environment.software.torch),
    ]
    found += [f"{name} {one} -> {other}" for name, one, other in places if one != other]
    if not found:
        added = [word for word in command if word not in before.command]
        removed = [word for word in before.command if word not in command]
        found = [f"command {' '.join(removed) or MISSING} -> {' '.join(added) or MISSING}"] if added or removed else []
    return found


def _has_trained(record: ListedRecord) -> bool:
    """Whether the settings of ``record`` are known: those of a script are defaults until it has trained."""
    return record.script is None or record.throughput is not None


def _device(record: ListedRecord) -> str:
    return record.environment.placements[0].device_name if record.environment.placements else MISSING


def run_table_lines(rows: Sequence[RunRow], page: Page) -> Iterator[Text]:
    """The table, with intervals if they fit; below each row what differs from the run before of the same training."""
    for with_interval in (True, False):
        heading = ["started (UTC)", "job", "training", "samples/s", *(["interval"] if with_interval else []), "verdict"]
        lines = align_columns([heading, *(_cells(row, with_interval) for row in rows)], "<<<>" + "<" * (len(heading) - 4), page)
        if max(map(len, lines)) <= page.width:
            break
    yield from styled(lines[:1], LABEL)
    for row, line in zip(rows, lines[1:], strict=True):
        yield Text(line)
        if row.changes:
            more = f", and {len(row.changes) - MAX_CHANGES} more" if len(row.changes) > MAX_CHANGES else ""
            yield from styled(wrap_text("    ", ", ".join(row.changes[:MAX_CHANGES]) + more, page))


def _cells(row: RunRow, with_interval: bool) -> list[str]:
    figure, interval = MISSING, MISSING
    if row.samples_per_s is not None:
        low, high = row.samples_per_s_low or row.samples_per_s, row.samples_per_s_high or row.samples_per_s
        figure, *edges = format_interval(row.samples_per_s, low, high)
        interval = f"{edges[0]} to {edges[1]}" if low < high else MISSING
    state = row.status if row.status != "ok" else ", ".join(filter(None, [row.verdict, row.cause])) or MISSING
    return [row.started[:16].replace("T", " "), row.job, row.workload, figure, *([interval] if with_interval else []), state]
