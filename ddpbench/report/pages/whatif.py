"""The page of a what-if answer: the gain, how it was predicted, and its assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.whatif.query import WhatIfAnswer
from ddpbench.record.loaders import loader_spec
from ddpbench.record.prediction import PREDICTION_CONFIDENCE
from ddpbench.record.record import Job, Record
from ddpbench.record.text import pluralize
from ddpbench.report.console import page_for, print_sections
from ddpbench.report.format import format_percent, format_rounded
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, styled, wrap_items, wrap_text
from ddpbench.report.messages.arms import throughput_unit
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.predictions import ALWAYS_ASSUMED, assumption_text
from ddpbench.report.messages.whatif import already_set_text, bottleneck_text, certain_gain_text, residual_text
from ddpbench.report.pages.header import title_lines

RESIDUAL_WARNING_FRACTION = 0.1
"""Model error, as a fraction of the measured step, above which the page warns."""


def render_whatif(job: Job, answer: WhatIfAnswer, console: Console) -> None:
    """Print what ``answer`` predicts for the run that ``job`` diagnosed."""
    page, record = page_for(console), baseline_of(job) or job.records[0]
    print_sections(
        console,
        [
            [*title_lines("whatif", record, page)],
            [*_gain(answer, record, page)],
            [*_bottleneck_lines(answer, record, page)],
            [*_assumption_lines(answer, page)],
        ],
    )


def _gain(answer: WhatIfAnswer, record: Record, page: Page) -> Iterator[Text]:
    estimate, unit = answer.estimate, throughput_unit(record)
    style = GOOD if estimate.low > 1 else CAUTION
    yield from styled(wrap_text("", f"{answer.scenario.flag_text}:  {certain_gain_text(estimate)}", page), style)
    rates = [format_rounded(answer.measured_samples_per_s * edge) for edge in (estimate.gain, estimate.low, estimate.high)]
    yield from _row("now", [f"{format_rounded(answer.measured_samples_per_s)} {unit}, measured"], page)
    yield from _row("then", [f"{rates[0]} {unit}  ({rates[1]} to {rates[2]}, {PREDICTION_CONFIDENCE:.0%})"], page)
    if answer.already_set.flag_text:
        yield from styled(wrap_text("         ", already_set_text(answer.already_set), page))


def _bottleneck_lines(answer: WhatIfAnswer, record: Record, page: Page) -> Iterator[Text]:
    estimate, device = answer.estimate, device_noun(record.environment)
    items = [f"{bottleneck_text(estimate)}:", f"{format_rounded(1000 * estimate.after.step_s / estimate.residual)} ms per step"]
    if not (record.environment.device_type == "cpu" and estimate.bottleneck == "cores"):  # CPU cores compute and load in turn
        items[-1] += ","
        items.append(f"{format_percent(max(0.0, estimate.after.data_wait_fraction), 2)} of it data wait")
    yield from _row("limit", items, page)
    yield from _row("with", [*_state_items(answer, device)], page)
    yield from styled(
        wrap_text("model    ", residual_text(estimate.residual), page),
        CAUTION if abs(estimate.residual - 1) > RESIDUAL_WARNING_FRACTION else "",
    )


def _state_items(answer: WhatIfAnswer, device: str) -> Iterator[str]:
    after = answer.after
    producer, prefetcher = ("thread", "pipeline") if loader_spec(after.loader).uses_threads else ("worker", "worker")
    yield f"loader {after.loader}"
    yield f"{pluralize(after.workers, producer)} per {device}"
    yield f"{after.prefetch} batches prefetched per {prefetcher}"
    yield f"batch {after.batch_size} x {after.ranks}"
    if after.cores is not None:
        cores = after.cores / after.ranks_per_node
        yield f"{pluralize(cores, 'core')} per {device}"


def _assumption_lines(answer: WhatIfAnswer, page: Page) -> Iterator[Text]:
    yield from styled(["assumptions"], LABEL)
    for text in (*map(assumption_text, answer.estimate.assumptions), ALWAYS_ASSUMED):
        yield from styled(wrap_text("  - ", text, page))


def _row(label: str, items: list[str], page: Page) -> list[Text]:
    return styled(wrap_items(f"{label:9}", items, page, gap=" " if label == "limit" else "   "), LABEL, len(label))
