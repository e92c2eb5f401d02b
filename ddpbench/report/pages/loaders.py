"""Loader costs: per image in a run, and one row per loader in a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from rich.text import Text

from ddpbench.analysis.pipeline.costs import loader_cost_of_run
from ddpbench.analysis.ranks import mean_or_none
from ddpbench.record.record import Job, Record
from ddpbench.report.format import MISSING, format_gib, format_rounded, format_s_as_ms, format_significant
from ddpbench.report.layout import CAUTION, LABEL, Page, align_columns, styled, wrap_text
from ddpbench.report.messages.arms import arm_name, throughput_unit
from ddpbench.report.messages.phrases import SLOWER_ALONE, is_slower_alone
from ddpbench.report.pages.header import labelled_lines


def loading_cost_lines(record: Record, page: Page) -> Iterator[Text]:
    """CPU time per image in the workers. Empty if the loader does not report it."""
    if cost := loader_cost_of_run(record):
        stages = ", ".join(f"{stage} {format_s_as_ms(span)}" for stage, span in cost.cpu_s_by_stage.items())
        yield from labelled_lines("load", [f"{format_s_as_ms(cost.cpu_s)} ms CPU time per {record.sample_unit}: {stages}"], page)


def loader_table(job: Job, page: Page) -> Iterator[Text]:
    """One row per benchmarked loader of all ranks, without training, with its training in the same job; memory is that of a rank's workers.

    Empty if no loader was benchmarked.
    """
    measured = [record for record in job.records if record.loader_benchmarks]
    if not measured:
        return
    heading = [
        "loader",
        f"alone, {throughput_unit(*job.records)}",
        "training",
        f"CPU ms/{measured[0].sample_unit}",
        "GiB/rank",
        "first batch",
    ]
    rows = [heading, *([arm_name(record.config, job.swept), *_row(record)] for record in measured)]
    lines = align_columns(rows, "<>>>>>", page)
    yield from styled(lines, LABEL, len(lines[0]))
    doubtful = [arm_name(record.config, job.swept) for record in measured if _is_slower_alone(record)]
    if doubtful:
        yield from styled(wrap_text("  ", f"alone, {', '.join(doubtful)}: {SLOWER_ALONE}", page), CAUTION)


def _samples_per_s_alone(record: Record) -> float:
    return len(record.loader_benchmarks) * min(each.samples_per_s for each in record.loader_benchmarks)


def _is_slower_alone(record: Record) -> bool:
    return record.throughput is not None and is_slower_alone(_samples_per_s_alone(record), record.throughput.samples_per_s)


def _row(record: Record) -> list[str]:
    """The cells of one loader.

    Rates are those of all ranks, limited by the slowest. Memory is the largest of any rank.
    """
    benchmarks = record.loader_benchmarks
    samples = sum(each.samples for each in benchmarks)
    cpu_s = fsum(each.loader_cpu_s + each.main_process_cpu_s for each in benchmarks) / samples if samples else None
    memory = max((each.workers_rss_bytes for each in benchmarks if each.workers_rss_bytes is not None), default=None)
    return [
        format_rounded(_samples_per_s_alone(record), 4),
        format_rounded(record.throughput.samples_per_s, 4) if record.throughput else MISSING,
        MISSING if cpu_s is None else format_s_as_ms(cpu_s),
        format_gib(memory),
        f"{format_significant(mean_or_none(each.first_batch_s for each in benchmarks), 2)} s",
    ]
