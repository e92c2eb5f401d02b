"""Exports a job: JSON in full, CSV with one row per arm."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from ddpbench.analysis.disturbance import without_disturbed
from ddpbench.analysis.metrics import last_accuracy
from ddpbench.analysis.scaling.ladder import ScalingPoint
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.throughput import throughput_interval
from ddpbench.record.record import Job, Record
from ddpbench.record.text import printable
from ddpbench.record.trace import COLLECTIVE_PHASES, EPOCH_START_PHASE, PHASES, SCRIPT_PHASE
from ddpbench.record.verdict import ScalingVerdict, Verdict
from ddpbench.report.messages.roles import role_name
from ddpbench.report.pages.scaling import scaling_points_by_role

STEP_PHASES = [phase for phase in PHASES if phase not in COLLECTIVE_PHASES] + [EPOCH_START_PHASE, SCRIPT_PHASE, "unexplained"]
"""The phases of a step without the waits for other ranks, those of a watched script, and the unexplained rest."""

FORMULA_PREFIXES = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a cell that a spreadsheet takes for a formula; the last four are the full-width forms of the first four."""


def jobs_to_json(*jobs: Job) -> str:
    """The job as in its file, indented; a list of scalars stays on one line.

    Several jobs become an array.
    """
    values = msgspec.to_builtins(jobs, str_keys=True)
    return _json_indented(values[0] if len(jobs) == 1 else list(values), "")


def without_missing_json(value: msgspec.Struct) -> str:
    """``value`` as one JSON object, without fields that are None."""

    def known(part: object) -> object:
        if isinstance(part, dict):
            return {name: known(each) for name, each in part.items() if each is not None}
        return [known(each) for each in part] if isinstance(part, list) else part

    return msgspec.json.encode(known(msgspec.to_builtins(value))).decode()


def jobs_to_csv(*jobs: Job) -> str:
    """A header line, then one row per arm: every setting, every figure unrounded.

    Missing values are empty cells.
    """
    return rows_to_csv([row for job in jobs for row in _rows(job)])


def rows_to_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """A header line with the names of the first row, then one line per row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def _json_indented(value: object, indent: str) -> str:
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        inner = [f"{_json_line(name)}: {_json_indented(each, deeper)}" for name, each in value.items()]
        opened, closed = "{}"
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        inner = [_json_indented(each, deeper) for each in value]
        opened, closed = "[]"
    else:
        return _json_line(value)
    lines = f",\n{deeper}".join(inner)
    return f"{opened}\n{deeper}{lines}\n{indent}{closed}"


def _json_line(value: object) -> str:
    """One line of JSON with every non-printable character escaped; JSON itself requires that of some only."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def _cell(value: object) -> object:
    """Text on one line, prefixed with an apostrophe if a spreadsheet would take it for a formula.

    Numbers stay numbers.
    """
    if not isinstance(value, str):
        return value
    text = printable(value).strip()
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) else text


def _rows(job: Job) -> list[Mapping[str, object]]:
    points = scaling_points_by_role(job)
    return [_csv_row(job, record, points.get(record.role)) for record in job.records]


def _csv_row(job: Job, record: Record, point: ScalingPoint | None) -> Mapping[str, object]:
    """The cells of an arm's row; names and order are the same for every job.

    ``low`` and ``high`` are an interval of that ``confidence`` or, if it is missing, the range of too few rounds. ``sync_ms`` is the
    whole wait for other ranks, including late data and the broadcast of buffers. The scaling verdict is in the row of the largest
    world size.
    """
    summary, software, headline = summarize(without_disturbed(record)), record.environment.software, record.throughput
    verdict: Verdict | ScalingVerdict | None = record.verdict
    if job.scaling:
        verdict = job.scaling.verdict if point and point.ranks == job.scaling.world_sizes[-1] else None
    interval = throughput_interval(record)
    launches = headline if interval and interval.confidence else None
    return {
        "started": job.started,
        **structs.asdict(record.config),
        "role": record.role.kind,
        "label": role_name(record.role, job),
        "status": record.status,
        "device_name": record.environment.placements[0].device_name,
        "hosts": " ".join(dict.fromkeys(each.host for each in record.environment.placements)),
        "world_size": record.world_size,
        "global_batch_size": record.global_batch_size,
        "torch": software.torch,
        "ddpbench": software.ddpbench,
        "rounds_done": len(record.rounds),
        "samples_per_s": headline and headline.samples_per_s,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "confidence": interval and interval.confidence,
        "launch_low": launches and launches.launch_low,
        "launch_high": launches and launches.launch_high,
        "efficiency": point and point.efficiency and point.efficiency.center,
        "lost_to": point and " or ".join(point.largest_losses),
        "step_ms": summary.step_ms,
        **{f"{phase}_ms": summary.phases_ms.get(phase) for phase in STEP_PHASES},
        "sync_ms": summary.collective_wait_ms,
        "peer_data_wait_ms": summary.peer_data_wait_ms,
        "broadcast_ms": summary.phases_ms.get("broadcast"),
        "data_wait_fraction": summary.data_wait_fraction,
        "first_step_s": record.warmup and record.warmup.first_step_s,
        "first_loss": summary.first_loss,
        "last_loss": summary.last_loss,
        "accuracy": last_accuracy(record),
        "peak_allocated_bytes": summary.peak_allocated_bytes,
        "host_rss_bytes": summary.rss_bytes,
        "joules_per_sample": summary.joules_per_sample,
        "mfu": summary.mfu,
        "verdict": verdict and verdict.kind,
        "verdict_repeatability": verdict and verdict.repeatability,
        "checks": " ".join(check.code for check in record.checks),
    }
