"""The page of a diagnosis: what holds a training back, in words; then where a step goes, what each part can give, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.case import Case
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cores import need
from ddpbench.analysis.cures import offered
from ddpbench.analysis.pipeline.ceilings import ceilings
from ddpbench.analysis.pipeline.cures import Cure
from ddpbench.analysis.pipeline.experiments import diagnosed, experiments_of
from ddpbench.analysis.pipeline.supply import supply
from ddpbench.analysis.summary import summarise
from ddpbench.analysis.whatif.answer import predicted
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_of, show
from ddpbench.report.ending import endings
from ddpbench.report.figures import percent
from ddpbench.report.findings import findings
from ddpbench.report.grid import show_sections
from ddpbench.report.header import labelled, loader_items, place
from ddpbench.report.ink import GOOD, LABEL, inked
from ddpbench.report.layout import Page, command, flow, sentence
from ddpbench.report.limits import ceiling_table, cost_table, needs, starting, utilised
from ddpbench.report.phases import phases
from ddpbench.report.proof import proof, use
from ddpbench.report.surroundings import machine
from ddpbench.report.warnings import unmeasured, warnings
from ddpbench.report.whatif import gain_text

HEALTHY = ("launch-bound", "sync-bound", "compute-bound")
"""Limits that no loader can help."""


def render_diagnosis(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the conclusion of ``job`` and what it rests on, as far as it was measured.

    ``verbose`` adds the checks that had nothing to say and more of the machine, ``quiet`` leaves the conclusion. ``path`` is where
    the record lies, ``None`` where it could not be saved.
    """
    page, real = page_of(console), diagnosed(job) or job.records[0]
    if quiet:
        show(console, findings(real, page))
        return
    sections: list[Sequence[Text]] = [[*_head(real, page)], [*endings({"": real}, page)], [*findings(real, page)]]
    summary = summarise(real)
    if summary.step_ms is not None:
        case = Case(real, summary, experiments_of(job))
        sections += [*_evidence(case, job, page, verbose), [*_cures(case, job, page)], [*proof(job, page)]]
    left_out = {name.replace("_", " "): why for name, why in job.diagnosis.left_out.items()} if job.diagnosis else {}
    last = [*unmeasured(left_out, page), *warnings({"": real}, page, verbose), *([Text(str(path))] if path else [])]
    show_sections(console, [*sections, last, [*use(job, page)]])


def _head(record: Record, page: Page) -> Iterator[Text]:
    config = record.config
    cores = f"{need(record).usable:g} usable cores"
    title = [config.workload, config.precision, place(record.environment), cores]
    yield from inked(flow("ddpbench diagnose  ", title, page, gap="  "), LABEL, len("ddpbench diagnose"))
    data = [record.data.description] if record.data else []
    loader = [text for _, text in loader_items(record)]
    yield from labelled("data", [*data, *loader, f"batch {config.batch_size}"], page)


def _evidence(case: Case, job: Job, page: Page, verbose: bool) -> Iterator[Sequence[Text]]:
    record, given = case.record, supply(case)
    yield [*phases(record, case.summary, page)]
    if job.diagnosis is not None:
        found = ceilings(case, given)
        yield [*ceiling_table(record, found, job.diagnosis, page)]
        held = [*needs(record, given, page), *starting(record, given, job.diagnosis, page), *utilised(record, found, page)]
        yield [*cost_table(case, given, page), *held, *machine(record, job.diagnosis.surroundings, page, verbose)]


def _cures(case: Case, job: Job, page: Page) -> Iterator[Text]:
    record, found = case.record, case.record.verdict
    if found is None:
        return
    if found.kind in HEALTHY:
        lost = f"{percent(case.data_wait_ms / case.step_ms, 2)} of a step"
        yield from inked(sentence("", f"nothing to do for the data: the loader keeps up, and costs {lost}", page), GOOD)
    cures = offered(Rerun(record, job.command), case, found)
    if all(cure.command == found.next and not cure.why for cure in cures):
        return  # there is no more to say
    yield from inked(["what may help"], LABEL)
    run, told = Rerun(record, job.command), job.diagnosis.predictions if job.diagnosis else []
    for cure in sorted(cures, key=lambda cure: -(cure.gain or 0.0)):
        on_record = next((each for each in told if each.change == cure.change and each.gain is not None), None)
        prediction = on_record or (predicted(case, run, cure.change) if cure.change else None)
        yield from _cure(cure, _predicted(prediction), record, page)


def _cure(cure: Cure, predicted: str, record: Record, page: Page) -> Iterator[Text]:
    """Its name and what is predicted of it, why, and the command; what was offered as the next step already is not typed twice."""
    said = "; ".join(filter(None, [predicted, cure.why]))
    yield from inked(sentence("  ", f"{cure.name}: {said}", page), LABEL, 2 + len(cure.name))
    if cure.command and record.verdict and cure.command != record.verdict.next:
        yield from inked(command("    ", cure.command, page))
    elif cure.command:
        yield from inked(sentence("    ", "the command is the one above, behind 'next'", page))


def _predicted(found: Prediction | None) -> str:
    if found is None:
        return ""
    if found.gain is None or found.low is None or found.high is None:
        return f"needs a measurement: {found.needs}"
    return f"{gain_text(found.gain, found.low, found.high)}, predicted ({found.confidence:.0%})"
