"""The page of a what-if answer: the gain, how it was predicted, and its assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.whatif.gain import CONFIDENCE
from ddpbench.analysis.whatif.query import WhatIfAnswer
from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import Job, Record
from ddpbench.record.text import pluralize
from ddpbench.report.console import page_for, print_sections
from ddpbench.report.format import format_percent, format_rounded
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, styled, wrap_items, wrap_text
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.whatif import (
    ALWAYS_ASSUMED,
    already_set_text,
    assumption_text,
    bottleneck_text,
    certain_gain_text,
    residual_text,
)
from ddpbench.report.pages.header import throughput_unit, title_lines

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
    price, unit = answer.estimate, throughput_unit(record)
    style = GOOD if price.low > 1 else CAUTION
    yield from styled(wrap_text("", f"{answer.scenario.flag_text}:  {certain_gain_text(price)}", page), style)
    reach = [format_rounded(answer.measured_samples_per_s * edge) for edge in (price.gain, price.low, price.high)]
    yield from _row("now", [f"{format_rounded(answer.measured_samples_per_s)} {unit}, measured"], page)
    yield from _row("then", [f"{reach[0]} {unit}  ({reach[1]} to {reach[2]}, {CONFIDENCE:.0%})"], page)
    if answer.already_set.flag_text:
        yield from styled(wrap_text("         ", already_set_text(answer.already_set), page))


def _bottleneck_lines(answer: WhatIfAnswer, record: Record, page: Page) -> Iterator[Text]:
    price, device = answer.estimate, device_noun(record.environment)
    limit = [f"{bottleneck_text(price)}:", f"{format_rounded(1000 * price.after.step_s / price.residual)} ms a step"]
    if not (record.environment.device_type == "cpu" and price.bottleneck == "cores"):  # CPU cores compute and load in turn
        limit[-1] += ","
        limit.append(f"the {device} waits {format_percent(max(0.0, price.after.data_wait_fraction), 2)} of it for data")
    yield from _row("limit", limit, page)
    yield from _row("by", [*_state_items(answer, device)], page)
    yield from styled(
        wrap_text("model    ", residual_text(price.residual), page), CAUTION if abs(price.residual - 1) > RESIDUAL_WARNING_FRACTION else ""
    )


def _state_items(answer: WhatIfAnswer, device: str) -> Iterator[str]:
    after = answer.after
    hands, each = ("thread", "a pipeline") if loader_spec(after.loader).uses_threads else ("worker", "each")
    yield f"loader {after.loader}"
    yield f"{pluralize(after.workers, hands)} a {device}"
    yield f"{after.prefetch} batches ahead {each}"
    yield f"batch {after.batch_size} x {after.ranks}"
    if after.cores is not None:
        cores = after.cores / after.ranks_per_node
        yield f"{pluralize(cores, 'core')} a {device}"


def _assumption_lines(answer: WhatIfAnswer, page: Page) -> Iterator[Text]:
    yield from styled(["taken for granted"], LABEL)
    for text in (*map(assumption_text, answer.estimate.assumptions), ALWAYS_ASSUMED):
        yield from styled(wrap_text("  - ", text, page))


def _row(label: str, items: list[str], page: Page) -> list[Text]:
    return styled(wrap_items(f"{label:9}", items, page, gap=" " if label == "limit" else "   "), LABEL, len(label))
