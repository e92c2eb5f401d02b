"""Throughput of the pipeline's parts, CPU time per image, and the cores and workers needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from rich.text import Text

from ddpbench.analysis.controls import MAX_FASTER
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.node_cpu_usage import MIN_OTHER_CORES
from ddpbench.analysis.pipeline.model import PipelineModel, worker_startup
from ddpbench.analysis.pipeline.part_rates import PipelineRates
from ddpbench.analysis.ranks import mean_or_none
from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.diagnosis import Diagnosis, Storage
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.format import MISSING, format_decimals, format_percent, format_rounded, format_s_as_ms, format_significant
from ddpbench.report.layout import CAUTION, LABEL, Page, align_columns, styled, wrap_items, wrap_text
from ddpbench.report.messages.arms import throughput_unit
from ddpbench.report.messages.dataset import no_cold_rate_reason
from ddpbench.report.messages.phrases import SLOWER_ALONE, device_noun, is_slower_alone

INDENT = "  "

TRAINER_PROCESS = "trainer process"
"""Name of the cost of receiving a batch from a worker, apart from the stages."""

MORE_TIME = "a longer --time-limit"

SETTLED_BY = f"{MORE_TIME} on an otherwise idle machine would settle it"

CONTRADICTED = f"no figure: its steps were slower than those of the training, so that something else slowed them down; {SETTLED_BY}"

NO_LIMIT = "no limit"

PartKind = Literal["measured", "computed", "run"]
"""Where a rate comes from; one that is computed from the cost of a sample is as uncertain as that, which may be too small to measure."""

MAX_SHARES: Mapping[PartKind, float] = {"measured": 100, "computed": 20, "run": inf}
"""A part that is so many times as fast as the device is no limit, and how much faster it is says nothing."""

MIN_RATE_FRACTION = 0.9
"""A part below this fraction of the device's throughput limits it."""


@dataclass(frozen=True)
class PipelineRow:
    """Throughput of one part of the pipeline and of the device, in images/s per rank."""

    name: str
    samples_per_s: float
    device_samples_per_s: float | None
    run_samples_per_s: float
    note: str = ""
    kind: PartKind = "measured"

    @property
    def cells(self) -> list[str]:
        name, rate, device = f"{INDENT}{self.name}", format_rounded(self.samples_per_s), self.device_samples_per_s
        if self.samples_per_s > MAX_SHARES[self.kind] * (device or self.run_samples_per_s):
            return [name, MISSING if self.kind == "computed" else rate, NO_LIMIT]
        return [name, rate, _share_text(min(self.samples_per_s, device or 0.0) if self.kind == "run" else self.samples_per_s, device)]

    @property
    def style(self) -> str:
        return CAUTION if self.device_samples_per_s and self.samples_per_s < MIN_RATE_FRACTION * self.device_samples_per_s else ""


def pipeline_table(record: Record, rates: PipelineRates, diagnosis: Diagnosis, page: Page) -> Iterator[Text]:
    """Every measured part with its share of the device's rate and a note, then the interference of loader and training."""
    rows, unit = _pipeline_rows(record, rates, diagnosis), f"{throughput_unit(record)} per {device_noun(record.environment)}"
    heading = ["pipeline throughput", unit, "of compute only" if rates.compute_only else "", ""]
    lines = align_columns([heading, *([*part.cells, part.note] for part in rows)], "<>><", page)
    yield from styled(lines[:1], LABEL)
    for line, part in zip(lines[1:], rows, strict=True):
        yield from styled([line], part.style)
    if rates.interference:
        yield from styled(wrap_text(INDENT, f"interference: {_interference_text(rates.interference)}", page))
    if rates.is_contradicted:
        yield from styled(wrap_text(INDENT, f"compute only: {CONTRADICTED}", page), CAUTION)
    if rates.loader_only and is_slower_alone(rates.loader_only, rates.achieved):
        yield from styled(wrap_text(INDENT, f"loader alone: {SLOWER_ALONE}", page), CAUTION)
    if doubt := _storage_doubt(diagnosis.storage):
        yield from styled(wrap_text(INDENT, f"files on storage: {doubt}", page))


def _interference_text(times: PairedRatio) -> str:
    """``steps are 31% (22% to 42%, 95%) longer while the loader runs``; with too few rounds for an interval, their number in its place.

    Steps that are shorter show none, and a single pair shows nothing.
    """
    if times.pairs < 2:
        return f"one round is too few to tell; {MORE_TIME} helps"
    if times.has_interval and times.high < 1 and times.center < 1 / MAX_FASTER:
        return f"no figure: steps were shorter while the loader ran, which it cannot cause; {SETTLED_BY}"
    if times.center <= 1:
        return "none measured: steps are no longer while the loader runs"
    center, low, high = (format_percent(edge - 1, 2) for edge in (times.center, times.low, times.high))
    reach = f"{low} to {high}, 95%" if times.has_interval else pluralize(times.pairs, "pair")
    prefix = "not significant, " if times.has_interval and not times.is_above_one else ""
    return f"{prefix}steps are {center}{'' if low == high and times.has_interval else f' ({reach})'} longer while the loader runs"


def _pipeline_rows(record: Record, rates: PipelineRates, diagnosis: Diagnosis) -> list[PipelineRow]:
    parts: list[tuple[str, float | None, str]] = [
        ("compute only", rates.compute_only, ""),
        ("no gradient sync", rates.independent, ""),
        ("batches in host memory", rates.replay, "copies and host"),
        ("copies, pinned", rates.pinned_copy, ""),
        ("copies, pageable" + ("" if record.config.pin_memory else ", in use"), rates.pageable_copy, ""),
        ("loader alone", rates.loader_only, "slowest rank"),
        ("loader on one rank", rates.loader_only_single_rank if record.world_size > 1 else None, "other ranks idle"),
        (f"loader, {pluralize(_all_cores_workers(diagnosis), 'worker')}", rates.loader_only_all_cores, "alone, with more workers"),
        ("files in page cache", rates.cached_files, _cached_note(diagnosis)),
        ("files on storage", rates.uncached_files, _file_system_note(diagnosis)),
    ]
    computed = {pluralize(record.workers, "busy worker"): rates.worker_bound, "usable cores": rates.core_bound}
    device, run = rates.compute_only, rates.achieved
    return [
        *(PipelineRow(name, rate, device, run, note) for name, rate, note in parts if rate is not None),
        *(PipelineRow(name, rate, device, run, kind="computed") for name, rate in computed.items() if rate is not None),
        PipelineRow("this run", run, device, run, kind="run"),
    ]


def cpu_cost_table(inputs: AnalysisInput, pipeline: PipelineModel, page: Page) -> Iterator[Text]:
    """The CPU time per image by stage in the workers and in the main process; the handoff time."""
    if pipeline.cost is None or pipeline.sample_cpu_s is None:
        return
    cost, item = pipeline.cost, inputs.record.sample_unit
    rows = [
        [
            f"{INDENT}{stage}",
            format_s_as_ms(cost.cpu_s_by_stage[stage]),
            format_s_as_ms(cost.wall_s_by_stage[stage]),
            format_percent(cost.cpu_s_by_stage[stage] / cost.cpu_s, 2),
        ]
        for stage in cost.cpu_s_by_stage
    ]
    if pipeline.workers and pipeline.main_process_cpu_s:
        rows.append([f"{INDENT}{TRAINER_PROCESS}", format_s_as_ms(pipeline.main_process_cpu_s), MISSING, MISSING])
    rows.append([f"{INDENT}total", format_s_as_ms(pipeline.sample_cpu_s), format_s_as_ms(cost.wall_s), MISSING])
    heading = [f"time per {item}, ms", "CPU", "wall", "CPU share"]
    lines = align_columns([heading, *rows], "<>>>", page)
    yield from styled(lines[:1], LABEL)
    yield from styled(lines[1:])
    handoff_ms = mean_or_none(trace.loader_stats.handoff_ms for trace in inputs.record.traces if trace.loader_stats)
    if handoff_ms is not None:
        yield from styled(
            wrap_text(INDENT, f"handoff: {format_significant(handoff_ms, 2)} ms of the data wait, after the batch was ready", page)
        )


def cpu_demand_lines(record: Record, pipeline: PipelineModel, page: Page) -> Iterator[Text]:
    """Cores and workers needed to keep up with the device, and those available.

    If the trainer process receives batches more slowly than the device trains, that is the rate to keep up with.
    """
    device = device_noun(record.environment)
    cores = [f"{pipeline.usable_cores / pipeline.ranks_per_node:g} usable per {device}"]
    if pipeline.whole_cores_needed is not None:
        cores = [
            f"{format_3sig(pipeline.whole_cores_needed)} needed per {device}",
            f"{pipeline.usable_cores / pipeline.ranks_per_node:g} usable",
        ]
    if pipeline.cpu_usage is not None:
        others = (
            f", {format_significant(pipeline.cpu_usage.other_cores, 2)} by other processes"
            if pipeline.cpu_usage.other_cores >= MIN_OTHER_CORES
            else ""
        )
        cores.append(f"{pipeline.cpu_usage.busy_fraction:.0%} busy{others}")
    if pipeline.is_handoff_bound:
        cores.append(f"for {format_rounded(pipeline.max_rate)} {throughput_unit(record)}, the most a {TRAINER_PROCESS} receives")
    yield from _row("cores", cores, page)
    if pipeline.workers_needed is not None and pipeline.max_useful_workers is not None:
        busy = f"these cores can keep {pipeline.max_useful_workers} busy"
        yield from _row("workers", [f"{pipeline.workers_needed:,} needed per {device}", f"{pipeline.workers} running", busy], page)


def worker_startup_lines(record: Record, pipeline: PipelineModel, diagnosis: Diagnosis, page: Page) -> Iterator[Text]:
    """The cost of starting workers, for scripts whose workers do not persist.

    This benchmark's batches continue over the end of an epoch; in many scripts they do not.
    """
    start = worker_startup(record, pipeline, diagnosis)
    if start is None or pipeline.cost is None:
        return
    always = record.data is not None and record.data.respawns_workers
    restart = "with workers that restart every epoch" if always else "if workers restart every epoch"
    share = f"{format_percent(start.epoch_fraction, 2)} of an epoch {restart}"
    yield from _row("start", [f"first batch after {format_significant(start.first_batch_s, 2)} s", share], page)


def utilization_lines(record: Record, rates: PipelineRates, page: Page) -> Iterator[Text]:
    """Accelerator utilization (AU), and the GPU-hours lost per day."""
    if rates.utilization is None:
        return
    share = min(1.0, rates.utilization)
    items = [f"{format_percent(share, 2)} of compute-only throughput"]
    hours = 24 * record.world_size
    if record.environment.device_type == "cuda" and share < 0.95:
        items.append(f"{format_decimals((1 - share) * hours, 0)} of {hours:,} GPU-hours per day lost")
    yield from _row("AU", items, page)


def _row(label: str, items: Sequence[str], page: Page) -> list[Text]:
    return styled(wrap_items(f"{label:9}", items, page), LABEL, len(label))


def _all_cores_workers(diagnosis: Diagnosis) -> int:
    return next((each.workers or 0 for each in diagnosis.all_cores_loader_benchmarks), 0)


def _cached_note(diagnosis: Diagnosis) -> str:
    storage = diagnosis.storage
    return f"{format_percent(storage.cached_fraction, 2)} cached" if storage and storage.cached_fraction is not None else ""


def _file_system_note(diagnosis: Diagnosis) -> str:
    return diagnosis.storage.file_system if diagnosis.storage else ""


def _storage_doubt(storage: Storage | None) -> str:
    """Why the storage has no rate or an unverified one; empty if there is no doubt."""
    if storage is None or storage.verified:
        return ""
    return (
        f"no rate: {no_cold_rate_reason(storage)}"
        if storage.cold_files_per_s is None
        else "not verified to come from a device rather than a cache"
    )


def _share_text(value: float, device: float | None) -> str:
    """``value`` as percent of the device's rate: two digits, three from 100% on."""
    if not device:
        return MISSING
    share = 100 * value / device
    return f"{format_rounded(share, 3 if share >= 100 else 2)}%"
