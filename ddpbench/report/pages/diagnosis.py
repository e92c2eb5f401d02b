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
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_for, print_lines, print_sections, record_path_lines
from ddpbench.report.format import format_percent
from ddpbench.report.grid import Grid
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, styled, wrap_items, wrap_text
from ddpbench.report.messages.dataset import dataset_text
from ddpbench.report.messages.remedies import worth_text
from ddpbench.report.messages.roles import disturbance_text, skip_reason, skipped_name
from ddpbench.report.messages.roofline import reached_text
from ddpbench.report.messages.screening import computing_gain_text
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.pages.checks import check_lines, not_measured_lines
from ddpbench.report.pages.header import labelled_lines, loader_items, title_lines
from ddpbench.report.pages.node_state import node_state_lines
from ddpbench.report.pages.phases import phase_grids, phase_table
from ddpbench.report.pages.pipeline_table import (
    cpu_cost_table,
    cpu_demand_lines,
    pipeline_table,
    utilization_lines,
    worker_startup_lines,
)
from ddpbench.report.pages.remedies import (
    advice_lines,
    advice_text,
    caution_text,
    comparison_lines,
    remedy_grid,
    remedy_lines,
    samples_text,
    tried_or_predicted,
)
from ddpbench.report.pages.screening import screened_remedies, screening_grid, screening_lines
from ddpbench.report.pages.script_diff import diff_texts
from ddpbench.report.pages.script_header import script_header_lines
from ddpbench.report.pages.status import diagnosis_status_lines
from ddpbench.report.pages.throughput import throughput_text
from ddpbench.report.pages.verdict import record_verdict_lines
from ddpbench.report.pages.watch import render_watch

NOT_LIMITED_BY_DATA = ("launch-bound", "sync-bound", "compute-bound")
"""Verdicts that no loader can improve."""


def render_diagnosis(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print the verdict on ``job`` and its evidence, as far as it was measured.

    About 25 lines. ``verbose`` adds the pipeline, the reason for each remedy and its command, all checks with hints, and the machine;
    ``quiet`` prints the verdict only. ``path`` is the record's file, None if it could not be saved.
    """
    page, baseline = page_for(console, verbose), baseline_of(job) or job.records[0]
    if baseline.script is not None and baseline.script.only_watched:
        return render_watch(job, console, path, verbose, quiet)
    advice = job.diagnosis.advice if job.diagnosis else None
    has_next = advice is None or advice.is_undecided
    verdict = [
        *record_verdict_lines(baseline, page, with_next=has_next, advice=advice),
        *_reached_line(baseline, job, page),
        *advice_lines(baseline, job.diagnosis, page),
    ]
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
            [*_throughput_line(baseline, page), *phase_table(baseline, summary, page)],
            *(_pipeline(inputs, job, job.diagnosis, page) if verbose and job.diagnosis else ()),
            [
                *_disturbance_lines(job, page),
                *_loader_keeps_up_line(inputs, page),
                *(remedy_lines(baseline, job.diagnosis, page, has_next=has_next) if job.diagnosis else ()),
            ],
            [*(screening_lines(job.diagnosis, page) if job.diagnosis else ())],
        ]
    skipped = {skipped_name(each, job): skip_reason(each) for each in job.diagnosis.skipped} if job.diagnosis and verbose else {}
    hints = verbose or any(check.severity == "error" for check in baseline.checks)
    sections.append(
        [
            *comparison_lines(baseline, job.diagnosis, page),
            *not_measured_lines(skipped, page),
            *check_lines({"": baseline}, page, hints),
            *record_path_lines(path, page),
        ]
    )
    print_sections(console, sections)


def _head(record: Record, page: Page) -> Iterator[Text]:
    if record.script is not None:
        yield from script_header_lines("diagnose", record, page)
        return
    yield from title_lines("diagnose", record, page)
    data = [dataset_text(record.data)] if record.data else []
    loader = [text for _, text in loader_items(record)]
    yield from labelled_lines("data", [*data, *loader, f"batch {record.config.batch_size}"], page)


def _throughput_line(record: Record, page: Page) -> list[Text]:
    """The throughput of the baseline as in the record of a run; empty if a check of it is an error."""
    return styled(wrap_items(f"{'throughput':13}", [throughput_text(record)], page), LABEL, len("throughput")) if record.throughput else []


def _reached_line(baseline: Record, job: Job, page: Page) -> list[Text]:
    """Of a script that computes, and that no setting makes faster: how near it is to what the GPU can do."""
    compute_only, advice = controls_of(job).compute_only, job.diagnosis.advice if job.diagnosis else None
    is_limit = baseline.script is not None and baseline.verdict is not None and baseline.verdict.kind == "compute-bound"
    if not is_limit or (advice and advice.computing) or compute_only is None or compute_only.roofline is None:
        return []
    return styled(wrap_text("  limit ", reached_text(compute_only.roofline), page), LABEL, len("  limit"))


def _pipeline(inputs: AnalysisInput, job: Job, diagnosis: Diagnosis, page: Page) -> Iterator[Sequence[Text]]:
    record, pipeline = inputs.record, pipeline_model(inputs)
    rates = pipeline_rates(inputs, pipeline)
    yield [*pipeline_table(record, rates, diagnosis, page)]
    yield [
        *cpu_cost_table(inputs, pipeline, page),
        *cpu_demand_lines(record, pipeline, page),
        *utilization_lines(record, rates, page),
        *worker_startup_lines(record, pipeline, diagnosis, page),
        *node_state_lines(record, diagnosis.node_states, page),
    ]


def _disturbance_lines(job: Job, page: Page) -> Iterator[Text]:
    for found in disturbances(job):
        yield from styled(wrap_text("  ", disturbance_text(found, job), page), CAUTION)


def diagnosis_tables(job: Job) -> list[Grid]:
    """The phases of a step and the remedies of ``job``, those that the page has and were measured."""
    baseline = baseline_of(job) or job.records[0]
    screened, others = screened_remedies(job.diagnosis), tried_or_predicted(job.diagnosis) if job.diagnosis else []
    remedies = [*([remedy_grid(others, baseline)] if others else ()), *([screening_grid(screened)] if screened else ())]
    return [*phase_grids(baseline, summarize(baseline)), *remedies]


def diagnosis_findings(job: Job) -> list[str]:
    """What to use and what that gains, what is known of the samples, and the disturbed rounds of each arm; one sentence each."""
    baseline, advice = baseline_of(job) or job.records[0], job.diagnosis.advice if job.diagnosis else None
    found = {
        "use": advice_text(advice) if advice else "",
        "note": caution_text(job.diagnosis) if job.diagnosis else "",
        "worth": worth_text(advice.worth, baseline) if advice and advice.worth else "",
        "then": next_step_text(advice.computing) if advice and advice.computing and advice.code != "screened" else "",
        "gains": computing_gain_text(advice) if advice else "",
        **(diff_texts(job.diagnosis.diff) if job.diagnosis else {}),
        "samples": samples_text(baseline, job.diagnosis),
    }
    return [*(f"{name}: {text}" for name, text in found.items() if text), *(disturbance_text(each, job) for each in disturbances(job))]


def _loader_keeps_up_line(inputs: AnalysisInput, page: Page) -> Iterator[Text]:
    waits = inputs.data_wait_ms >= BOTTLENECK_FRACTION * inputs.step_ms
    if inputs.record.verdict and inputs.record.verdict.kind in NOT_LIMITED_BY_DATA and not waits:
        data_wait = f"{format_percent(inputs.data_wait_ms / inputs.step_ms, 2)} of a step"
        yield from styled(wrap_text("", f"the loader keeps up: data wait is {data_wait}", page), GOOD)
