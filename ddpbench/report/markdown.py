"""A job as markdown, to paste where people talk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.analysis.scaling.ladder import Rung
from ddpbench.record.record import Job, Record
from ddpbench.record.text import printable
from ddpbench.report.format import MISSING, gib, interval
from ddpbench.report.grid import Grid
from ddpbench.report.pages.arms import arm_name, arm_values, memory_heading, speedup_text
from ddpbench.report.pages.checks import together
from ddpbench.report.pages.header import place, rate
from ddpbench.report.pages.registry import view_of
from ddpbench.report.pages.scaling import EFFICIENCY, LOST_TO, efficiency_text, rungs_of
from ddpbench.report.pages.status import ending_words
from ddpbench.report.pages.verdict import verdict_text

LONE_RUN = ("workload", "precision")
"""What names a run that has no other arm beside it."""

BY_ITSELF = ("run", "diagnose")
"""Jobs whose trainings each have a verdict of their own; those of others tell something together."""

INLINE = re.compile(r"[\\`*_\[\]<|&~$]|(?<=www)\.|:(?=//)", re.IGNORECASE)
"""What starts code, emphasis, a link, HTML, an entity or a formula wherever it stands, or divides cells."""

BLOCK = re.compile(r"^(\d*)([.)](?= |$)|(?<!\d)[#>+=-])")
"""What starts a heading, a quotation, a list or a rule at the beginning of a line."""


def to_markdown(job: Job) -> str:
    """The tables of the job's page, and one with a row an arm; under them what it comes to, endings, checks and the command."""
    top = max(job.records, key=lambda record: record.world_size)
    view = view_of(job)
    said = [*view.findings(job), *_said(job)]
    lines = [
        f"**ddpbench** {_escaped(f'{_model(job)}, {place(top.environment)}, {job.started}')}",
        "",
        *(line for each in view.tables(job) for line in _of_a_figure(each)),
        *_of_arms(job),
        "",
        *map(_bullet, said),
        *([""] if said else []),
        _code(shlex.join(job.command)),
    ]
    return "\n".join(lines)


def _model(job: Job) -> str:
    """The workload; of several the first and the last."""
    names = list(dict.fromkeys(record.config.workload for record in job.records))
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _of_a_figure(found: Grid) -> list[str]:
    columns = [*found.names, *found.values]
    rows = [[column.heading for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    return [f"**{_escaped(found.title)}**", "", *_table(rows, len(found.names)), ""]


def _of_arms(job: Job) -> list[str]:
    """Of a ladder with efficiencies in place of speed-ups."""
    rungs, names = rungs_of(job), job.swept or LONE_RUN
    labels = [record.label or MISSING for record in job.records] if any(record.label for record in job.records) else []
    naming = [*(name.replace("_", "-") for name in names), *(["training"] if labels else [])]
    compared = [EFFICIENCY, LOST_TO] if rungs else ["speed-up"]
    heading = [*naming, rate(*job.records), "95% interval", *compared, memory_heading(job.records)]
    kept = [_kept(rungs.get(record.label)) if rungs else [] for record in job.records]
    arms = enumerate(compare(job.records))
    rows = [[*arm_values(row.config, names), *labels[at : at + 1], *_cells(row, kept[at])] for at, row in arms]
    return _table([heading, *rows], len(naming))


def _table(rows: Sequence[Sequence[str]], naming: int) -> list[str]:
    """The first row is the heading, and the first ``naming`` columns name the others."""
    heading, *rest = rows
    aligned = ["---"] * naming + ["---:"] * (len(heading) - naming)
    return [f"| {' | '.join(map(_escaped, cells))} |" for cells in (heading, aligned, *rest)]


def _whose(record: Record, job: Job) -> str:
    """What a line about one of several arms begins with."""
    named = " ".join(filter(None, [arm_name(record.config, job.swept) if job.swept else "", record.label]))
    return f"{named}: " if named else ""


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


def _said(job: Job) -> list[str]:
    """How arms ended where not well, what limits them where each stands for itself, and what the checks say."""
    lines = [f"{_whose(record, job)}{ending_words(record)}" for record in job.records if record.status not in ("ok", "invalid")]
    if job.kind in BY_ITSELF:
        lines += [f"{_whose(record, job)}{verdict_text(record.verdict)}" for record in job.records if record.verdict]
    checks: dict[str, dict[str, str]] = {}
    for record in job.records:
        for check in record.checks:
            checks.setdefault(check.name, {})[_whose(record, job).removesuffix(": ")] = check.sentence
    return [*lines, *(f"{name}: {text}" for name, sentences in checks.items() for text in together(sentences, len(job.records)))]


def _escaped(text: str) -> str:
    """``text`` on one line, or in one cell, with every character escaped that markdown would act on."""
    return INLINE.sub(r"\\\g<0>", " ".join(printable(text).split()))


def _bullet(text: str) -> str:
    return "- " + BLOCK.sub(r"\1\\\2", _escaped(text))


def _code(text: str) -> str:
    """``text`` as inline code. The fence has one backtick more than any run of backticks in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    gap = " " if "`" in text else ""
    return f"{fence}{gap}{printable(text)}{gap}{fence}"
