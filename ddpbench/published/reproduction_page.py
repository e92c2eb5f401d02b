"""A published experiment beside this machine's: its table, the figures here, how many times the published, and its claims in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.metrics import Measure
from ddpbench.published.claims import ClaimResult, claims
from ddpbench.published.crossover_page import crossover
from ddpbench.published.effect_size import FAR, NEGLIGIBLE
from ddpbench.published.publications import Experiment, Publication, load, names
from ddpbench.published.reproduction import RowResult, departures, rows, stand_ins
from ddpbench.published.sweep_points import by_precision, cells
from ddpbench.record.record import Job, Record
from ddpbench.record.registry import precision
from ddpbench.report.console import page_of, show, show_sections
from ddpbench.report.format import MISSING, significant
from ddpbench.report.grid import Column, Grid, as_published, grid, mean_cell
from ddpbench.report.layout import GAP, Page, flow, sentence
from ddpbench.report.pages.checks import warnings
from ddpbench.report.pages.header import place
from ddpbench.report.pages.status import continued, endings
from ddpbench.report.styled import CAUTION, GOOD, LABEL, inked

ANSWERS = {True: ("holds", GOOD), False: ("not here", CAUTION), None: ("open", LABEL)}
SAME_WAY = ("same way", CAUTION)

MEANING = (
    f"holds: the whole interval shows the published effect (less, none within {NEGLIGIBLE:.0%}, or more) and lies within {FAR:g} times of "
    "the published factor; same way: the effect, of another size; not here: another effect; open: this cannot be told. Of one round, as "
    "most of what was published, the figure itself stands for the interval"
)
"""What the words before the answers say."""
HERE = "here"


@dataclass(frozen=True)
class _Setting:
    """One column: a precision, as the source calls it, and what sets its cell apart."""

    precision: str  # as the source spells it
    heading: str
    label: str  # of the cell here


def render_published(console: Console) -> None:
    """Prints what can be reproduced: each experiment with its title and its workloads."""
    page = page_of(console)
    for publication in map(load, names()):
        show(console, inked([publication.id], LABEL))
        show(console, inked(sentence("  ", publication.title, page)))
        show(console, inked(flow("  ", [each.workload for each in publication.experiments], page)))


def render_reproduction(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the published experiment that ``job`` repeats beside it, one Record a cell. Raises UsageError for one that is unknown.

    ``verbose`` adds the checks that had nothing to say, ``quiet`` leaves the claims. ``path`` is where the record lies,
    ``None`` where it could not be saved.
    """
    page, publication = page_of(console), publication_of(job)
    claimed = [[*_claim(result, page)] for result in claims(publication.id, job)]
    if quiet:
        show_sections(console, claimed)
        return
    named = {_name(record): record for record in job.records}
    sections = [
        [*_head(publication, job, page)],
        *([*table] for table in _tables(publication, job, page)),
        [*_labelled("words", MEANING, page)],
        *claimed,
        [*endings(named, page), *continued(job, page)],
        [*warnings(named, page, verbose, hints=False)],
        [Text(str(path))] if path else [],
    ]
    show_sections(console, sections)


def publication_of(job: Job) -> Publication:
    """The published experiment that ``job`` repeats, which its kind names. Raises UsageError for one that is unknown."""
    return load(job.kind.removeprefix("reproduce "))


def concluded(job: Job) -> Iterator[str]:
    """In what the job is not as it was published; then every claim, and whether it holds here."""
    publication = publication_of(job)
    yield from (f"but {departure}" for departure in departures(job))
    for result in claims(publication.id, job):
        word, _, told = answered(result)
        yield f"claimed: {result.says}; {word}: {told}"


def _name(record: Record) -> str:
    batch = f"batch {record.config.batch_size}"
    device = record.environment.device_type if record.config.workload.startswith("disc-mlp") else ""
    return ", ".join(filter(None, [record.config.workload, record.config.precision, batch, record.label or device]))


def _head(publication: Publication, job: Job, page: Page) -> Iterator[Text]:
    yield from inked(sentence("", f"ddpbench reproduce  {publication.id}", page), LABEL)
    yield from _labelled("published", f"{publication.title}; {publication.source}", page)
    yield from _labelled("with", "; ".join(filter(None, [publication.hardware, publication.software])), page)
    for protocol in filter(None, [publication.protocol, *(_protocol(each) for each in publication.experiments)]):
        yield from _labelled("protocol", protocol, page)
    yield from _labelled("here", "; ".join(dict.fromkeys(place(record.environment) for record in job.records)), page)
    for departure in [*departures(job), *(f"{other} stands for {one}" for one, other in stand_ins(publication, job).items())]:
        yield from _labelled("but", departure, page)
    for note in _mappings(publication):
        yield from _labelled("note", note, page)


def _protocol(experiment: Experiment) -> str:
    return f"{experiment.workload}: {experiment.protocol}" if experiment.protocol else ""


def _mappings(publication: Publication) -> Iterator[str]:
    """What a published name means here, where the two differ in what they say."""
    every = [row for each in publication.experiments for row in each.rows]
    for scale in dict.fromkeys(row.static_loss_scale for row in every if row.published_label == "FP16"):
        yield f"what was published as FP16 is o2: half network, float32 BatchNorm and master weights, static loss scale {scale:g}"
    if any(row.static_loss_scale == "given, unused" for row in every):
        yield "fp32 was given the static loss scale too; nothing uses it"


def _tables(publication: Publication, job: Job, page: Page) -> Iterator[Iterator[Text]]:
    if not rows(publication.id, job):
        yield crossover(job, page)
    yield from (grid(*each, page) for each in grids(publication, job, page.table_width))


def grids(publication: Publication, job: Job, width: float = inf) -> Iterator[Grid]:
    """A table a figure of every published experiment, no wider than ``width`` where that can be; none of a crossover."""
    results = rows(publication.id, job)
    for experiment in publication.experiments:
        ours = [result for result in results if result.experiment.workload == experiment.workload]
        for name in ours[0].compared if ours else ():
            yield _table(name, ours, job, width)


def _table(name: str, results: Sequence[RowResult], job: Job, width: float) -> Grid:
    """With standard deviations where there is room for them and all columns."""
    measure, lines, settings = results[0].compared[name].measure, _lines(results), _settings(results)
    keys = _keys(lines)
    title = f"{results[0].experiment.workload}: {measure.heading}"
    for with_sd in (True, False):
        shown = [column for each in settings for column in _columns(each, lines, measure, job, with_sd)]
        if sum(column.width + len(GAP) for column in [*keys, *shown]) - len(GAP) <= width:
            break
    title += ", mean (standard deviation)" if any("(" in cell for column in shown for cell in column.cells) else ", mean"
    title += "; ratio: here over published" if any(column.joined for column in shown) else ""
    return Grid(title, keys, shown)


@dataclass(frozen=True)
class _Line:
    """One line of a table: a published place's results, or those whose cells here are shown."""

    where: str
    results: Sequence[RowResult]

    def of(self, setting: _Setting) -> RowResult | None:
        return next((result for result in self.results if result.row.precision == setting.precision), None)


def _lines(results: Sequence[RowResult]) -> list[_Line]:
    """For every batch its published places, then what is here."""
    lines: list[_Line] = []
    for batch in dict.fromkeys(result.row.batch_size for result in results):
        ours = [result for result in results if result.row.batch_size == batch]
        for where in dict.fromkeys(result.row.where for result in ours):
            lines.append(_Line(where or "published", [result for result in ours if result.row.where == where]))
        lines.append(_Line(HERE, ours))
    return lines


def _keys(lines: Sequence[_Line]) -> list[Column]:
    where = Column("", [line.where for line in lines], "<")
    if not any(line.results[0].row.batch_size for line in lines):
        return [where]
    return [Column("batch", [_batch(line) for line in lines]), where]


def _batch(line: _Line) -> str:
    """Of what is here, the batch that was trained."""
    row, record = line.results[0].row, next((result.record for result in line.results if result.record), None)
    batch = record.config.batch_size if line.where == HERE and record else row.batch_size
    return MISSING if batch is None else str(batch)


def _settings(results: Sequence[RowResult]) -> list[_Setting]:
    """The published precisions; beside one whose cell has a label, the cell without."""
    settings = []
    for result in {result.row.precision: result for result in results}.values():
        name = precision(result.row.precision).name
        theirs = result.row.published_label or result.row.precision
        heading = name if theirs.lower() == name else f"{name} ({theirs})"
        label = result.record.label if result.record else ""
        settings.append(_Setting(result.row.precision, f"{heading}, {label}" if label else heading, label))
        if label:
            settings.append(_Setting(result.row.precision, f"{heading}, clean", ""))
    return settings


def _columns(setting: _Setting, lines: Sequence[_Line], measure: Measure, job: Job, with_sd: bool) -> list[Column]:
    figures = [_cell(line, setting, measure, job, with_sd) for line in lines]
    shown = [Column(setting.heading, figures)]
    times = [_ratio(line, setting, measure) for line in lines]
    if any(times):
        shown.append(Column("ratio", times, joined=True))
    return shown


def _cell(line: _Line, setting: _Setting, measure: Measure, job: Job, with_sd: bool) -> str:
    result = line.of(setting)
    if result is None:
        return MISSING
    if line.where == HERE:
        record = _here(result, setting, job)
        return mean_cell(measure, record, with_sd)
    if result.record is not None and result.record.label != setting.label:
        return MISSING
    figure = result.compared[measure.name].published
    return as_published(figure, measure, with_sd) if figure else result.row.note or MISSING


def _here(result: RowResult, setting: _Setting, job: Job) -> Record | None:
    if result.record is None or result.record.label == setting.label:
        return result.record
    asked = result.record.config
    return by_precision(cells(job, asked.workload), asked.precision, asked.batch_size, setting.label)


def _ratio(line: _Line, setting: _Setting, measure: Measure) -> str:
    result = line.of(setting)
    if result is None or line.where == HERE or (result.record and result.record.label != setting.label):
        return ""
    ratio = result.compared[measure.name].ratio
    return significant(float(f"{ratio:.3g}")) if ratio is not None else ""


def _claim(result: ClaimResult, page: Page) -> Iterator[Text]:
    word, style, told = answered(result)
    yield from _labelled("claimed", result.says, page)
    known = [f"{each.name} {each.published:.2f}" for each in result.ratios if each.published is not None]
    yield from inked(flow("published  ", known, page)) if known else []
    yield from inked(sentence(f"{word:9}  ", told, page), style, len(word))


def answered(result: ClaimResult) -> tuple[str, str, str]:
    """Whether a claim holds, in a word and the style that it has, and in a sentence."""
    word, style = SAME_WAY if result.far else ANSWERS[result.holds]
    factors = ", ".join(f"{each.name} is {each.words} here and {each.published:.2f} published" for each in result.far)
    return word, style, f"same direction, but {factors}; {result.sentence}" if factors else result.sentence


def _labelled(label: str, text: str, page: Page) -> list[Text]:
    return inked(sentence(f"{label:9}  ", text, page), LABEL, len(label)) if text else []
