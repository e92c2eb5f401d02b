"""The page of a reproduction: its tables, the results here, the ratios and the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.metrics import Metric
from ddpbench.published.claims import ClaimResult, check_claims
from ddpbench.published.crossover_page import crossover_lines
from ddpbench.published.effect_size import FAR_FACTOR, NEGLIGIBLE_EFFECT
from ddpbench.published.publications import Publication, PublishedExperiment, load_publication, published_names
from ddpbench.published.reproduction import RowResult, compare_rows, protocol_deviations, substituted_workloads
from ddpbench.published.sweep_points import find_by_precision, matching_records
from ddpbench.record.record import Job, Record
from ddpbench.record.registry import find_precision
from ddpbench.record.roles import RUN, Role
from ddpbench.report.console import page_for, print_lines, print_sections, record_path_lines
from ddpbench.report.format import MISSING, format_significant
from ddpbench.report.grid import Grid, GridColumn, format_as_published, grid_lines, mean_cell
from ddpbench.report.layout import CAUTION, COLUMN_GAP, GOOD, LABEL, Page, styled, wrap_items, wrap_text
from ddpbench.report.messages.roles import role_name
from ddpbench.report.pages.checks import check_lines
from ddpbench.report.pages.header import machine_text
from ddpbench.report.pages.status import resume_hint_lines, status_lines

CLAIM_WORDS = {True: ("holds", GOOD), False: ("not here", CAUTION), None: ("open", LABEL)}
SAME_DIRECTION = ("same way", CAUTION)

CLAIM_LEGEND = (
    f"holds: the whole interval shows the published effect (less, none within {NEGLIGIBLE_EFFECT:.0%}, or "
    f"more) and is within {FAR_FACTOR:g} times of "
    "the published factor; same way: the published effect, but of another size; not here: a different effect; open: undecided. "
    "With one round, as in most publications, the figure itself is used as the interval"
)
"""Explains the words before the claims."""

SHORT_LEGEND = (
    f"holds: the published effect, at most {FAR_FACTOR:g} times larger or smaller; same way: of another size; ratios: published -> here"
)
HERE = "here"


@dataclass(frozen=True)
class _PrecisionColumn:
    """One column: a precision, and what distinguishes its arm."""

    precision: str  # as the source spells it
    heading: str
    role: Role  # of the record here


def render_published(console: Console) -> None:
    """Print each published experiment with its title and workloads."""
    page = page_for(console)
    for publication in map(load_publication, published_names()):
        print_lines(console, styled([publication.id], LABEL))
        print_lines(console, styled(wrap_text("  ", publication.title, page)))
        print_lines(console, styled(wrap_items("  ", [each.workload for each in publication.experiments], page)))


def render_reproduction(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print whether the claims of the published experiment hold in ``job``.

    ``verbose`` adds the protocol, the tables of both, the reasons, and all checks; ``quiet`` prints the claims only. ``path`` is the
    record's file, None if it could not be saved. Raises UsageError if the experiment is unknown.
    """
    page, publication = page_for(console, verbose), publication_of(job)
    claims = [[*_claim(result, page)] for result in check_claims(publication.id, job)]
    if quiet:
        print_sections(console, claims)
        return
    named = {_name(record): record for record in job.records}
    sections = [
        [*_head(publication, job, page)],
        *([*table] for table in _tables(publication, job, page) if verbose),
        *(
            ([*_labelled("words", CLAIM_LEGEND, page)], *claims)
            if verbose
            else ([*_labelled("words", SHORT_LEGEND, page), *chain(*claims)],)
        ),
        [*status_lines(named, page), *resume_hint_lines(job, page)],
        [*check_lines(named, page, hints=False), *record_path_lines(path, page)],
    ]
    print_sections(console, sections)


def publication_of(job: Job) -> Publication:
    """The published experiment that the kind of ``job`` names.

    Raises UsageError if it is unknown.
    """
    return load_publication(job.kind.removeprefix("reproduce "))


def reproduction_findings(job: Job) -> Iterator[str]:
    """How the job deviates from the protocol, then whether each claim holds here."""
    publication = publication_of(job)
    yield from (f"but {deviation}" for deviation in protocol_deviations(job))
    for result in check_claims(publication.id, job):
        word, _, explanation = claim_result_text(result)
        yield f"claimed: {result.claim}; {word}: {explanation}"


def _name(record: Record) -> str:
    batch = f"batch {record.config.batch_size}"
    device = record.environment.device_type if record.config.workload.startswith("disc-mlp") else ""
    return ", ".join(filter(None, [record.config.workload, record.config.precision, batch, role_name(record.role) or device]))


def _head(publication: Publication, job: Job, page: Page) -> Iterator[Text]:
    yield from styled(wrap_text("", f"ddpbench reproduce  {publication.id}", page), LABEL)
    yield from _labelled("published", f"{publication.title}; {publication.source}", page)
    if page.verbose:
        yield from _labelled("with", "; ".join(filter(None, [publication.hardware, publication.software])), page)
        for protocol in filter(None, [publication.protocol, *(_protocol(each) for each in publication.experiments)]):
            yield from _labelled("protocol", protocol, page)
    yield from _labelled("here", "; ".join(dict.fromkeys(machine_text(record.environment) for record in job.records)), page)
    for deviation in [
        *protocol_deviations(job),
        *(f"{other} replaces {one}" for one, other in substituted_workloads(publication, job).items()),
    ]:
        yield from _labelled("but", deviation, page)
    for note in _precision_notes(publication) if page.verbose else ():
        yield from _labelled("note", note, page)


def _protocol(experiment: PublishedExperiment) -> str:
    return f"{experiment.workload}: {experiment.protocol}" if experiment.protocol else ""


def _precision_notes(publication: Publication) -> Iterator[str]:
    """Notes on published precision names that mean something else here."""
    rows = [row for each in publication.experiments for row in each.rows]
    for scale in dict.fromkeys(row.static_loss_scale for row in rows if row.published_label == "FP16"):
        yield f"the published FP16 is o2 here: half-precision network, float32 BatchNorm and master weights, static loss scale {scale:g}"
    if any(row.static_loss_scale == "given, unused" for row in rows):
        yield "fp32 also has the static loss scale, which has no effect"


def _tables(publication: Publication, job: Job, page: Page) -> Iterator[Iterator[Text]]:
    if not compare_rows(publication.id, job):
        yield crossover_lines(job, page)
    yield from (grid_lines(*each, page) for each in reproduction_grids(publication, job, page.table_width))


def reproduction_grids(publication: Publication, job: Job, width: float = inf) -> Iterator[Grid]:
    """One table per figure of every published experiment; none for a crossover.

    No table is wider than ``width`` if that is possible.
    """
    results = compare_rows(publication.id, job)
    for experiment in publication.experiments:
        experiment_results = [result for result in results if result.experiment.workload == experiment.workload]
        for name in experiment_results[0].figures if experiment_results else ():
            yield _table(name, experiment_results, job, width)


def _table(name: str, results: Sequence[RowResult], job: Job, width: float) -> Grid:
    """The table of one metric, with standard deviations if they fit ``width``."""
    metric, lines, precision_columns = results[0].figures[name].metric, _table_rows(results), _precision_columns(results)
    name_columns = _name_columns(lines)
    title = f"{results[0].experiment.workload}: {metric.heading}"
    for with_std in (True, False):
        columns = [column for each in precision_columns for column in _columns(each, lines, metric, job, with_std)]
        if sum(column.width + len(COLUMN_GAP) for column in [*name_columns, *columns]) - len(COLUMN_GAP) <= width:
            break
    title += ", mean (standard deviation)" if any("(" in cell for column in columns for cell in column.cells) else ", mean"
    title += "; ratio: here over published" if any(column.joins_previous for column in columns) else ""
    return Grid(title, name_columns, columns)


@dataclass(frozen=True)
class _TableRow:
    """One line of a table: a published source's results, or the records here."""

    source: str
    results: Sequence[RowResult]

    def result_for(self, setting: _PrecisionColumn) -> RowResult | None:
        return next((result for result in self.results if result.row.precision == setting.precision), None)


def _table_rows(results: Sequence[RowResult]) -> list[_TableRow]:
    """Per batch size, the lines of its published sources, then the line here."""
    lines: list[_TableRow] = []
    for batch in dict.fromkeys(result.row.batch_size for result in results):
        batch_results = [result for result in results if result.row.batch_size == batch]
        for source in dict.fromkeys(result.row.measured_on for result in batch_results):
            lines.append(_TableRow(source or "published", [result for result in batch_results if result.row.measured_on == source]))
        lines.append(_TableRow(HERE, batch_results))
    return lines


def _name_columns(lines: Sequence[_TableRow]) -> list[GridColumn]:
    sources = GridColumn("", [line.source for line in lines], "<")
    if not any(line.results[0].row.batch_size for line in lines):
        return [sources]
    return [GridColumn("batch", [_batch(line) for line in lines]), sources]


def _batch(line: _TableRow) -> str:
    """The batch size; for the line here, the one that was trained."""
    row, record = line.results[0].row, next((result.record for result in line.results if result.record), None)
    batch = record.config.batch_size if line.source == HERE and record else row.batch_size
    return MISSING if batch is None else str(batch)


def _precision_columns(results: Sequence[RowResult]) -> list[_PrecisionColumn]:
    """A column per published precision; if its arm has a role of its own, one without it too."""
    settings = []
    for result in {result.row.precision: result for result in results}.values():
        name = find_precision(result.row.precision).name
        published_label = result.row.published_label or result.row.precision
        heading = name if published_label.lower() == name else f"{name} ({published_label})"
        role = result.record.role if result.record else RUN
        label = role_name(role)
        settings.append(_PrecisionColumn(result.row.precision, f"{heading}, {label}" if label else heading, role))
        if label:
            settings.append(_PrecisionColumn(result.row.precision, f"{heading}, clean", RUN))
    return settings


def _columns(setting: _PrecisionColumn, lines: Sequence[_TableRow], metric: Metric, job: Job, with_std: bool) -> list[GridColumn]:
    figures = [_cell(line, setting, metric, job, with_std) for line in lines]
    columns = [GridColumn(setting.heading, figures)]
    ratios = [_ratio(line, setting, metric) for line in lines]
    if any(ratios):
        columns.append(GridColumn("ratio", ratios, joins_previous=True))
    return columns


def _cell(line: _TableRow, setting: _PrecisionColumn, metric: Metric, job: Job, with_std: bool) -> str:
    result = line.result_for(setting)
    if result is None:
        return MISSING
    if line.source == HERE:
        record = _record_here(result, setting, job)
        return mean_cell(metric, record, with_std)
    if result.record is not None and result.record.role != setting.role:
        return MISSING
    figure = result.figures[metric.name].published
    return format_as_published(figure, metric, with_std) if figure else result.row.note or MISSING


def _record_here(result: RowResult, setting: _PrecisionColumn, job: Job) -> Record | None:
    if result.record is None or result.record.role == setting.role:
        return result.record
    config = result.record.config
    return find_by_precision(matching_records(job, config.workload), config.precision, config.batch_size, setting.role)


def _ratio(line: _TableRow, setting: _PrecisionColumn, metric: Metric) -> str:
    result = line.result_for(setting)
    if result is None or line.source == HERE or (result.record and result.record.role != setting.role):
        return ""
    if metric.name == "accuracy" and result.record and result.record.data and result.record.data.generated:
        return ""  # what a network learns of generated data compares with nothing
    ratio = result.figures[metric.name].ratio
    return format_significant(float(f"{ratio:.3g}")) if ratio is not None else ""


def _claim(result: ClaimResult, page: Page) -> Iterator[Text]:
    word, style, explanation = claim_result_text(result)
    if not page.verbose:
        ratios = [f"{each.name} {each.published:.2f} -> {each.text}" for each in result.ratios if each.published is not None]
        yield from styled(wrap_text(f"{word:9}  ", result.claim, page), style, len(word))
        yield from styled(wrap_items(" " * 11, ratios or [explanation], page))
        return
    yield from _labelled("claimed", result.claim, page)
    published = [f"{each.name} {each.published:.2f}" for each in result.ratios if each.published is not None]
    yield from styled(wrap_items("published  ", published, page)) if published else []
    yield from styled(wrap_text(f"{word:9}  ", explanation, page), style, len(word))


def claim_result_text(result: ClaimResult) -> tuple[str, str, str]:
    """Whether a claim holds: in a word, the style of that word, and a sentence."""
    word, style = SAME_DIRECTION if result.far_ratios else CLAIM_WORDS[result.holds]
    factors = ", ".join(f"{each.name} is {each.text} here and {each.published:.2f} published" for each in result.far_ratios)
    return word, style, f"same direction, but {factors}; {result.explanation}" if factors else result.explanation


def _labelled(label: str, text: str, page: Page) -> list[Text]:
    return styled(wrap_text(f"{label:9}  ", text, page), LABEL, len(label)) if text else []
