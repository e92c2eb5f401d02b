"""A job as markdown, to paste into an issue or a chat."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.analysis.scaling.ladder import ScalingPoint
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import RUN
from ddpbench.record.text import printable
from ddpbench.report.format import MISSING, format_gib, format_interval
from ddpbench.report.grid import Grid
from ddpbench.report.messages.arms import arm_label, arm_values, throughput_unit
from ddpbench.report.messages.checks import check_sentence
from ddpbench.report.messages.roles import role_name
from ddpbench.report.messages.scaling import losses_text
from ddpbench.report.messages.sentence import Sentence
from ddpbench.report.messages.status import status_text
from ddpbench.report.messages.verdict import explain_verdict, verdict_sentence
from ddpbench.report.pages.arms import memory_heading, speedup_text
from ddpbench.report.pages.checks import merge_sentences
from ddpbench.report.pages.header import machine_text
from ddpbench.report.pages.registry import view_of
from ddpbench.report.pages.scaling import EFFICIENCY, LOST_TO, efficiency_text, scaling_points_by_role

SINGLE_RUN_FIELDS = ("workload", "precision")
"""Fields that name a run with a single arm."""

KINDS_WITH_OWN_VERDICTS = ("run", "diagnose", "watch")
"""Kinds of job in which every record has its own verdict; other kinds have one for the whole job."""

INLINE_MARKUP = re.compile(r"[\\`*_\[\]<|&~$]|(?<=www)\.|:(?=//)", re.IGNORECASE)
"""Characters with a meaning anywhere in markdown: code, emphasis, links, HTML, entities, formulas, cell borders."""

BLOCK_MARKUP = re.compile(r"^(\d*)([.)](?= |$)|(?<!\d)[#>+=-])")
"""Characters with a meaning at the start of a line: headings, quotations, lists, rules."""


def to_markdown(job: Job) -> str:
    """The tables of the job's page and one row per arm, then findings and the command."""
    largest = max(job.records, key=lambda record: record.world_size)
    view = view_of(job)
    findings = [*view.findings(job), *_arm_findings(job)]
    lines = [
        f"**ddpbench** {_escape(f'{_workloads_text(job)}, {machine_text(largest.environment)}, {job.started}')}",
        "",
        *(line for each in view.tables(job) for line in _grid_table(each)),
        *_arm_table(job),
        "",
        *map(_bullet, findings),
        *([""] if findings else []),
        "command redacted" if job.redacted else _code(shlex.join(job.command)),
    ]
    return "\n".join(lines)


def _workloads_text(job: Job) -> str:
    """The workload; for several, the first and the last."""
    names = list(dict.fromkeys(record.config.workload for record in job.records))
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _grid_table(grid: Grid) -> list[str]:
    columns = [*grid.name_columns, *grid.value_columns]
    rows = [[column.heading for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    return [f"**{_escape(grid.title)}**", "", *_table(rows, len(grid.name_columns)), ""]


def _arm_table(job: Job) -> list[str]:
    """The table of arms; a scale job has efficiencies in place of speed-ups, a diagnosis the gains of its remedies in another table."""
    points, names = scaling_points_by_role(job), job.swept or SINGLE_RUN_FIELDS
    labels = [role_name(record.role, job) or MISSING for record in job.records] if any(record.role != RUN for record in job.records) else []
    naming = [*(name.replace("_", "-") for name in names), *(["training"] if labels else [])]
    compared = [EFFICIENCY, LOST_TO] if points else [] if job.diagnosis else ["speed-up"]
    heading = [*naming, throughput_unit(*job.records), "95% interval", *compared, memory_heading(job.records)]
    rows = []
    for at, row in enumerate(compare(job.records)):
        comparison = _efficiency_cells(points.get(row.record.role)) if points else [] if job.diagnosis else [_speedup_cell(row)]
        rows.append([*arm_values(row.record.config, names), *labels[at : at + 1], *_cells(row, comparison)])
    return _table([heading, *rows], len(naming))


def _table(rows: Sequence[Sequence[str]], naming: int) -> list[str]:
    """A markdown table: ``rows[0]`` is the heading, the first ``naming`` columns name the rows."""
    heading, *rest = rows
    aligned = ["---"] * naming + ["---:"] * (len(heading) - naming)
    return [f"| {' | '.join(map(_escape, cells))} |" for cells in (heading, aligned, *rest)]


def _arm_prefix(record: Record, job: Job) -> str:
    """Prefix of a line about one of several arms."""
    named = arm_label(record, job)
    return f"{named}: " if named else ""


def _cells(row: ArmRow, comparison: Sequence[str]) -> Sequence[str]:
    """The cells after an arm's name; ``comparison`` stands before the memory."""
    interval = row.interval
    if row.samples_per_s is None or interval is None:
        return [row.state, MISSING, *comparison, format_gib(row.memory_bytes)]
    center, low, high = format_interval(row.samples_per_s, interval.low, interval.high)
    spread = f"{low} to {high}" + (f" (range of {interval.num_values})" if interval.confidence is None else "")
    return [
        center,
        spread if interval.low < interval.high else MISSING,
        *comparison,
        format_gib(row.memory_bytes),
    ]


def _speedup_cell(row: ArmRow) -> str:
    """The speed-up; for an arm without a valid figure, its state, unless that is in place of the figure."""
    return MISSING if row.samples_per_s is None else row.state or speedup_text(row)


def _efficiency_cells(point: ScalingPoint | None) -> list[str]:
    """Efficiency and largest loss; ``-`` for an arm that is no scaling point."""
    return [efficiency_text(point), losses_text(point.largest_losses) or MISSING] if point else [MISSING, MISSING]


def _arm_findings(job: Job) -> list[str]:
    """Failures, verdicts (if each arm has its own) and checks, one line each."""
    lines = [f"{_arm_prefix(record, job)}{status_text(record)}" for record in job.records if record.status not in ("ok", "invalid")]
    if job.kind in KINDS_WITH_OWN_VERDICTS:
        lines += [
            f"{_arm_prefix(record, job)}{verdict_sentence(record.verdict, explain_verdict(record.verdict, record))}"
            for record in job.records
            if record.verdict
        ]
    checks: dict[str, dict[str, Sentence]] = {}
    for record in job.records:
        for check in record.checks:
            checks.setdefault(check.code, {})[_arm_prefix(record, job).removesuffix(": ")] = check_sentence(check, record)
    return [*lines, *(f"{name}: {text}" for name, sentences in checks.items() for text in merge_sentences(sentences, len(job.records)))]


def _escape(text: str) -> str:
    """``text`` on one line, with all markdown characters escaped."""
    return INLINE_MARKUP.sub(r"\\\g<0>", " ".join(printable(text).split()))


def _bullet(text: str) -> str:
    return "- " + BLOCK_MARKUP.sub(r"\1\\\2", _escape(text))


def _code(text: str) -> str:
    """``text`` as inline code. The fence has one backtick more than any run of backticks in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    gap = " " if "`" in text else ""
    return f"{fence}{gap}{printable(text)}{gap}{fence}"
