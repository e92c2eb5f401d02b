"""The page of a diagnosis: verdict, phases of a step, pipeline rates, remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.controls import baseline_of, controls_of
from ddpbench.analysis.disturbance import disturbances
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.pipeline.part_rates import pipeline_rates
from ddpbench.analysis.summary import BOTTLENECK_FRACTION, summarize
from ddpbench.analysis.whatif.outcome import best_outcome, outcomes
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_for, print_lines, print_sections
from ddpbench.report.format import format_percent
from ddpbench.report.layout import CAUTION, GOOD, Page, styled, wrap_text
from ddpbench.report.messages.dataset import dataset_text
from ddpbench.report.messages.roles import disturbance_text, skip_reason, skipped_name
from ddpbench.report.pages.checks import check_lines, not_measured_lines
from ddpbench.report.pages.header import labelled_lines, loader_items, title_lines
from ddpbench.report.pages.node_state import node_state_lines
from ddpbench.report.pages.phases import phase_table
from ddpbench.report.pages.pipeline_table import (
    cpu_cost_line,
    cpu_cost_table,
    cpu_demand_lines,
    pipeline_table,
    utilization_lines,
    worker_startup_lines,
)
from ddpbench.report.pages.remedies import comparison_lines, is_next_step_tried, recommendation_lines, remedy_lines
from ddpbench.report.pages.script_header import script_header_lines
from ddpbench.report.pages.status import diagnosis_status_lines
from ddpbench.report.pages.verdict import record_verdict_lines
from ddpbench.report.pages.watch import render_watch

NOT_LIMITED_BY_DATA = ("launch-bound", "sync-bound", "compute-bound")
"""Verdicts that no loader can improve."""


def render_diagnosis(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print the verdict on ``job`` and its evidence, as far as it was measured.

    About fifty lines. ``verbose`` adds the purpose of each remedy, notes, tables, hints, the checks that passed and the machine;
    ``quiet`` prints the verdict only. ``path`` is the record's file, None if it could not be saved.
    """
    page, baseline = page_for(console), baseline_of(job) or job.records[0]
    if baseline.script is not None and baseline.script.only_watched:
        return render_watch(job, console, path, verbose, quiet)
    recommended = best_outcome(outcomes(job))
    has_next = recommended is None and not is_next_step_tried(job, baseline)
    verdict = [*record_verdict_lines(baseline, page, with_next=has_next), *recommendation_lines(job, recommended, page)]
    if quiet:
        print_lines(console, verdict)
        return
    sections: list[Sequence[Text]] = [
        [*_head(baseline, page)],
        [*diagnosis_status_lines(baseline, job, page)],
        verdict,
    ]
    summary = summarize(baseline)
    if summary.step_ms is not None:
        inputs = AnalysisInput(baseline, summary, controls_of(job))
        sections += [
            *_evidence(inputs, job, page, verbose),
            [*_loader_keeps_up_line(inputs, page), *remedy_lines(inputs, job, page, verbose, has_next=has_next)],
            [*comparison_lines(baseline, page)],
        ]
    skipped = {skipped_name(each, job): skip_reason(each) for each in job.diagnosis.skipped} if job.diagnosis else {}
    hints = verbose or any(check.severity == "error" for check in baseline.checks)
    last = [*not_measured_lines(skipped, page), *check_lines({"": baseline}, page, verbose, hints), *([Text(str(path))] if path else [])]
    print_sections(console, [*sections, last])


def _head(record: Record, page: Page) -> Iterator[Text]:
    if record.script is not None:
        yield from script_header_lines("diagnose", record, page)
        return
    yield from title_lines("diagnose", record, page)
    data = [dataset_text(record.data)] if record.data else []
    loader = [text for _, text in loader_items(record)]
    yield from labelled_lines("data", [*data, *loader, f"batch {record.config.batch_size}"], page)


def _evidence(inputs: AnalysisInput, job: Job, page: Page, verbose: bool) -> Iterator[Sequence[Text]]:
    record, pipeline = inputs.record, pipeline_model(inputs)
    yield [*phase_table(record, inputs.summary, page)]
    if job.diagnosis is not None:
        rates = pipeline_rates(inputs, pipeline)
        yield [*pipeline_table(record, rates, job.diagnosis, page, verbose), *_disturbance_lines(job, page)]
        cpu_cost = cpu_cost_table if verbose else cpu_cost_line
        startup = worker_startup_lines(record, pipeline, job.diagnosis, page) if verbose else []
        nodes = node_state_lines(record, job.diagnosis.node_states, page, verbose)
        yield [
            *cpu_cost(inputs, pipeline, page),
            *cpu_demand_lines(record, pipeline, page),
            *utilization_lines(record, rates, page),
            *startup,
            *nodes,
        ]


def _disturbance_lines(job: Job, page: Page) -> Iterator[Text]:
    for text in diagnosis_findings(job):
        yield from styled(wrap_text("  ", text, page), CAUTION)


def diagnosis_findings(job: Job) -> list[str]:
    """The disturbed rounds of each arm, one sentence each."""
    return [disturbance_text(found, job) for found in disturbances(job)]


def _loader_keeps_up_line(inputs: AnalysisInput, page: Page) -> Iterator[Text]:
    waits = inputs.data_wait_ms >= BOTTLENECK_FRACTION * inputs.step_ms
    if inputs.record.verdict and inputs.record.verdict.kind in NOT_LIMITED_BY_DATA and not waits:
        data_wait = f"{format_percent(inputs.data_wait_ms / inputs.step_ms, 2)} of a step"
        yield from styled(wrap_text("", f"the loader keeps up: data wait is {data_wait}", page), GOOD)
