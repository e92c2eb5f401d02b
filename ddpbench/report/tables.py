"""A job for other programs: JSON whole, CSV with a row an arm, markdown to paste where people talk."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.analysis.evidence import reach
from ddpbench.analysis.measures import last_accuracy
from ddpbench.analysis.scaling.ladder import Rung
from ddpbench.analysis.summary import summarise
from ddpbench.record.record import Job, Record
from ddpbench.record.trace import PHASES, WAITS_FOR_OTHERS
from ddpbench.record.verdict import Verdict
from ddpbench.report.arms import arm_name, arm_values, memory_heading, speedup_text
from ddpbench.report.ending import ending_words
from ddpbench.report.figures import MISSING, gib, interval
from ddpbench.report.header import place, rate
from ddpbench.report.scaling import EFFICIENCY, LOST_TO, efficiency_text, rungs_of, way_down

STEP = [phase for phase in PHASES if phase not in WAITS_FOR_OTHERS] + ["unexplained"]
"""What a step consists of beside the wait for other ranks."""

LONE_RUN = ("workload", "precision")
"""What names a run that has no other arm beside it."""


def to_json(*jobs: Job) -> str:
    """The job as its file holds it, indented; a list of numbers or words has one line. Several are an array."""
    held = msgspec.to_builtins(jobs)
    return _indented(held[0] if len(jobs) == 1 else list(held), "")


def to_csv(*jobs: Job) -> str:
    """A line of names, then a row an arm: every setting, and every figure in full. What is missing is an empty cell."""
    rows = [row for job in jobs for row in _rows(job)]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def to_markdown(job: Job) -> str:
    """A table with a row an arm, rounded as on the terminal; under it verdicts, endings, checks and the command.

    Of a ladder the table has efficiencies in place of speed-ups, and the verdict is the one on all of it, with the way down.
    """
    rungs, top = rungs_of(job), max(job.records, key=lambda record: record.world_size)
    names = job.swept or LONE_RUN
    labels = [record.label or MISSING for record in job.records] if any(record.label for record in job.records) else []
    naming = [*(name.replace("_", "-") for name in names), *(["training"] if labels else [])]
    compared = [EFFICIENCY, LOST_TO] if rungs else ["speed-up"]
    figures = [rate(*job.records), "95% interval", *compared, memory_heading(job.records)]
    kept = [_kept(rungs.get(record.label)) if rungs else [] for record in job.records]
    arms = enumerate(compare(job.records))
    rows = [[*arm_values(row.config, names), *labels[at : at + 1], *_cells(row, kept[at])] for at, row in arms]
    table = [[*naming, *figures], ["---"] * len(naming) + ["---:"] * len(figures), *rows]
    said = [*_of_the_ladder(job), *(line for record in job.records for line in _said(record, _whose(record, job), alone=not job.scaling))]
    lines = [
        f"**ddpbench** {job.records[0].config.workload}, {place(top.environment)}, {job.started}",
        "",
        *(f"| {' | '.join(map(_escaped, cells))} |" for cells in table),
        "",
        *(f"- {_escaped(line)}" for line in said),
        *([""] if said else []),
        f"`{shlex.join(job.command)}`",
    ]
    return "\n".join(lines)


def _whose(record: Record, job: Job) -> str:
    """What a line about one of several arms begins with."""
    named = " ".join(filter(None, [arm_name(record.config, job.swept) if job.swept else "", record.label]))
    return f"{named}: " if named else ""


def _indented(value: object, indent: str) -> str:
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        inner = [f"{_plain(name)}: {_indented(each, deeper)}" for name, each in value.items()]
        opened, closed = "{}"
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        inner = [_indented(each, deeper) for each in value]
        opened, closed = "[]"
    else:
        return _plain(value)
    lines = f",\n{deeper}".join(inner)
    return f"{opened}\n{deeper}{lines}\n{indent}{closed}"


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rows(job: Job) -> list[Mapping[str, object]]:
    rungs = rungs_of(job)
    return [_flat(job, record, rungs.get(record.label)) for record in job.records]


def _flat(job: Job, record: Record, rung: Rung | None) -> Mapping[str, object]:
    """Every cell of an arm's row; the same names, in the same order, for every job.

    ``low`` and ``high`` are an interval of that ``confidence`` or, where that is missing, the range of too few rounds. ``sync_ms``
    is the whole wait for other ranks; late data and the broadcast of buffers are parts of it. The verdict on a ladder is in the row of
    its last rung.
    """
    summary, software, headline, verdict = summarise(record), record.environment.software, record.headline, record.verdict
    if job.scaling:
        verdict = job.scaling.verdict if rung and rung.ranks == job.scaling.ladder[-1] else None
    within = reach(record)
    across = headline if within and within.confidence else None
    return {
        "started": job.started,
        **structs.asdict(record.config),
        "label": record.label,
        "status": record.status,
        "device_name": record.environment.places[0].device,
        "hosts": " ".join(dict.fromkeys(each.host for each in record.environment.places)),
        "world_size": record.world_size,
        "global_batch": record.global_batch,
        "torch": software.torch,
        "ddpbench": software.ddpbench,
        "rounds_done": summary.rounds,
        "images_per_s": headline and headline.images_per_s,
        "low": within and within.low,
        "high": within and within.high,
        "confidence": within and within.confidence,
        "launch_low": across and across.launch_low,
        "launch_high": across and across.launch_high,
        "efficiency": rung and rung.efficiency and rung.efficiency.center,
        "lost_to": rung and rung.lost_to,
        "step_ms": summary.step_ms,
        **{f"{phase}_ms": summary.phases_ms.get(phase) for phase in STEP},
        "sync_ms": summary.sync_ms,
        "late_data_ms": summary.late_data_ms,
        "broadcast_ms": summary.phases_ms.get("broadcast"),
        "data_wait_share": summary.data_wait_share,
        "first_step_s": record.preparation and record.preparation.first_step_s,
        "first_loss": summary.first_loss,
        "last_loss": summary.last_loss,
        "accuracy": last_accuracy(record),
        "peak_bytes": summary.peak_bytes,
        "host_rss_bytes": summary.rss_bytes,
        "joules_per_image": summary.joules_per_image,
        "mfu": summary.mfu,
        "verdict": verdict and verdict.kind,
        "checks": " ".join(check.name for check in record.checks),
    }


def _cells(row: ArmRow, kept: Sequence[str]) -> Sequence[str]:
    """With what a rung has ``kept`` where there are rungs, else how many times as fast it is."""
    within = row.reach
    if row.images_per_s is None or within is None:
        return [row.state, MISSING, *(kept or [MISSING]), gib(row.memory_bytes)]
    center, low, high = interval(row.images_per_s, within.low, within.high)
    spread = f"{low} to {high}" + (f" (range of {within.of})" if within.confidence is None else "")
    return [center, spread if within.low < within.high else MISSING, *(kept or [row.state or speedup_text(row)]), gib(row.memory_bytes)]


def _kept(rung: Rung | None) -> list[str]:
    """Its efficiency, and what it loses most to; of a training that is no rung nothing."""
    return [efficiency_text(rung), rung.lost_to or MISSING] if rung else [MISSING, MISSING]


def _of_the_ladder(job: Job) -> list[str]:
    verdict = job.scaling and job.scaling.verdict
    return [*([_limit(verdict)] if verdict else []), *filter(None, [way_down(job)])]


def _limit(verdict: Verdict) -> str:
    return f"{verdict.kind}: {verdict.says}; {verdict.why}"


def _said(record: Record, whose: str, alone: bool) -> list[str]:
    """How it ended where not well, what limits it if it stands ``alone``, and what the checks say."""
    lines = [] if record.status in ("ok", "invalid") else [ending_words(record)]
    if record.verdict and alone:
        lines.append(_limit(record.verdict))
    return [whose + line for line in (*lines, *(f"{check.name}: {check.sentence}" for check in record.checks))]


def _escaped(text: str) -> str:
    """``text`` in one cell, without anything that markdown would take for its own."""
    plain = " ".join(text.split())
    return "".join(f"\\{character}" if character in "\\`*_[]<|" else character for character in plain)
