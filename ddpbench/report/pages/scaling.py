"""The page of a scale job: efficiency per world size, and where the rest is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.scaling.ladder import MAX_EFFICIENCY, ScalingPoint, compute_scaling_points
from ddpbench.analysis.scaling.runs import scaling_runs
from ddpbench.analysis.scaling.verdict import ScalingAnalysis, analyze_scaling
from ddpbench.analysis.scaling.waterfall import LossTerm
from ddpbench.analysis.summary import summarize
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import WITH_DATA, Role, ddp_role
from ddpbench.record.text import pluralize
from ddpbench.report.console import page_for, print_lines, print_sections, record_path_lines
from ddpbench.report.format import MISSING, format_decimals, format_interval, format_percent, format_rounded, format_summands
from ddpbench.report.layout import CAUTION, LABEL, Page, align_columns, styled, wrap_items, wrap_text
from ddpbench.report.messages.arms import throughput_unit
from ddpbench.report.messages.checks import baseline_doubts_text
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.roles import role_name, skip_reason, skipped_name
from ddpbench.report.messages.scaling import LOSS_NAMES, explain_loss, losses_text
from ddpbench.report.messages.verdict import verdict_sentence
from ddpbench.report.pages.checks import check_lines, not_measured_lines, strict_failure_lines
from ddpbench.report.pages.header import labelled_lines, machine_text, transport_text
from ddpbench.report.pages.ranks import straggler_lines
from ddpbench.report.pages.status import status_lines
from ddpbench.report.pages.verdict import verdict_lines

EFFICIENCY, LOST_TO = "efficiency %", "lost to"

UNRELIABLE = "unreliable"
MAX_IDLE_CORES = 0.05
"""A waiting rank that keeps at most this much of a core busy does not slow the others."""


def render_scaling(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print the verdict on ``job``, its efficiencies and the breakdown of its losses.

    The breakdown leads from N times one rank to the measured throughput. ``verbose`` adds the all-reduce and all checks; ``quiet`` prints
    the verdict only. ``path`` is the record's file, None if it could not be saved.
    """
    page, runs = page_for(console, verbose), scaling_runs(job)
    analysis = analyze_scaling(job, runs) if runs else None
    verdict = job.scaling and job.scaling.verdict
    verdict_section = [*verdict_lines(verdict, explain_loss(verdict.evidence, job), page)] if verdict else []
    if quiet:
        failures = strict_failure_lines(_named(job), page) if job.records[0].config.strict else ()
        print_lines(console, [*verdict_section, *failures])
        return
    sections: list[Sequence[Text]] = [[*_head(job, page)], [*status_lines(_named(job), page)], verdict_section]
    if runs and runs.ddp_by_ranks:
        breakdown = _breakdown_lines(analysis, page) if analysis else ()
        sections.append([*_scaling_table(analysis.points if analysis else compute_scaling_points(runs, None), job, page), *breakdown])
    if analysis:
        straggler = straggler_lines(analysis.final, summarize(analysis.final).straggler, page)
        sections += [[*_allreduce_lines(analysis, page)] if verbose else [], straggler]
    checked = {name: record for name, record in _named(job).items() if verbose or record in (runs.ddp_by_ranks.values() if runs else ())}
    last = [*_not_measured_lines(job, page), *check_lines(checked, page), *record_path_lines(path, page)]
    print_sections(console, [*sections, last])


def scaling_points_by_role(job: Job) -> dict[Role, ScalingPoint]:
    """The scaling points by the role of their arm; empty for other kinds of job."""
    runs = scaling_runs(job)
    if runs is None:
        return {}
    analysis = analyze_scaling(job, runs)
    return {ddp_role(each.ranks): each for each in (analysis.points if analysis else compute_scaling_points(runs, None))}


def scaling_findings(job: Job) -> Iterator[str]:
    """The scaling verdict and the breakdown in one line each, if available."""
    if job.scaling and (verdict := job.scaling.verdict):
        yield verdict_sentence(verdict, explain_loss(verdict.evidence, job))
    runs = scaling_runs(job)
    if runs and (analysis := analyze_scaling(job, runs)):
        yield ", ".join(_breakdown_items(analysis))


def _named(job: Job) -> dict[str, Record]:
    return {role_name(record.role, job): record for record in job.records}


def _head(job: Job, page: Page) -> Iterator[Text]:
    largest = max(job.records, key=lambda record: record.world_size)
    config, scaling = largest.config, job.scaling
    strong = scaling is not None and scaling.strong_scaling
    title = [config.workload, config.precision, "strong scaling" if strong else "weak scaling"]
    yield from styled(wrap_items("ddpbench scale  ", title, page, gap="  "), LABEL, len("ddpbench scale"))
    device = device_noun(largest.environment)
    batch = f"batch {largest.global_batch_size} split over {largest.world_size}" if strong else f"batch {config.batch_size} per {device}"
    rounds = f"up to {pluralize(config.rounds, 'round')}, interleaved"
    machine = [machine_text(largest.environment), *filter(None, [transport_text(largest.environment)])]
    loader = next((record.config.loader for record in job.records if record.role == WITH_DATA), None)
    data = "batches on the device" + (f"; loader {loader} in arm '{role_name(WITH_DATA)}'" if loader else "")
    yield from styled(wrap_items("", [*machine, batch, data, f"torch {largest.environment.software.torch}", rounds], page))


def _scaling_table(points: Sequence[ScalingPoint], job: Job, page: Page) -> Iterator[Text]:
    device = device_noun(job.records[0].environment)
    heading = [f"{device}s", throughput_unit(job.records[0]), f"per {device}", EFFICIENCY, LOST_TO]
    cells = ([str(each.ranks), *_throughput_cells(each), efficiency_text(each), losses_text(each.largest_losses)] for each in points)
    lines = align_columns([heading, *cells], ">>><<", page)
    yield from styled(lines, LABEL, len(lines[0]))
    if doubts := next((each.baseline_doubts for each in points if each.baseline_doubts), None):
        reasons = baseline_doubts_text(doubts, job.records[0])
        text = f"efficiency exceeds {MAX_EFFICIENCY:.0%}; 1-rank baseline: {reasons}"
        yield from styled(wrap_text(f"{UNRELIABLE}  ", text, page), CAUTION, len(UNRELIABLE))


def _throughput_cells(point: ScalingPoint) -> tuple[str, str]:
    low, high = (point.interval.low, point.interval.high) if point.interval else (point.samples_per_s, point.samples_per_s)
    each = [value / point.ranks for value in (point.samples_per_s, low, high)]
    return format_interval(point.samples_per_s, low, high)[0], format_interval(each[0], each[1], each[2])[0]


def efficiency_text(point: ScalingPoint) -> str:
    """The efficiency in percent with its interval; one above ``MAX_EFFICIENCY`` is marked as unreliable."""
    if point.efficiency is None:
        return MISSING
    if point.ranks == 1:
        return "100"
    ratio = point.efficiency
    center, low, high = format_interval(100 * ratio.center, 100 * ratio.low, 100 * ratio.high)
    interval = f" ({low} to {high})" if ratio.has_interval else f" ({pluralize(ratio.pairs, 'pair')})"
    return f"{center}{interval}" + (f" {UNRELIABLE}" if point.baseline_doubts else "")


def _breakdown_lines(analysis: ScalingAnalysis, page: Page) -> Iterator[Text]:
    (ideal, *items), record = _breakdown_items(analysis), analysis.final
    yield Text()
    yield Text(f"{throughput_unit(record)} lost on {pluralize(record.world_size, device_noun(record.environment))}", LABEL)
    yield from styled(wrap_items(f"{ideal}  ", items, page), LABEL, len(ideal) + 2)


def _breakdown_items(analysis: ScalingAnalysis) -> list[str]:
    """``24,800 ideal``, each loss, ``= 23,900``."""
    breakdown = analysis.breakdown
    decimals = 0 if breakdown.measured_samples_per_s >= 1000 else 1 if breakdown.measured_samples_per_s >= 100 else 2
    numbers = format_summands([breakdown.ideal_samples_per_s, *(term.samples_per_s for term in breakdown.terms)], decimals)
    items = [
        f"{LOSS_NAMES[term.name]} {_signed(printed)}{_uncertainty_text(term, decimals)}{_straggler_note(analysis, term)}"
        for term, printed in zip(breakdown.terms, numbers[1:], strict=True)
    ]
    if breakdown.term("data") is None:
        items.insert(1 if len(items) > 1 else 0, f"{LOSS_NAMES['data']} {MISSING}")
    arm = "" if breakdown.term("data") is None else f" {role_name(WITH_DATA)}"
    reached = f"= {format_decimals(breakdown.measured_samples_per_s, decimals)}{arm}"
    return [f"{numbers[0]} ideal", *items, reached]


def _signed(printed: str) -> str:
    """With a plus sign for a gain, so that it stands out among losses."""
    return printed if printed.startswith("-") or not printed.strip("0.") else f"+{printed}"


def _uncertainty_text(term: LossTerm, decimals: int) -> str:
    return "" if term.half_width is None else f" +-{format_decimals(term.half_width, decimals)}"


def _straggler_note(analysis: ScalingAnalysis, term: LossTerm) -> str:
    straggler = summarize(analysis.final).straggler if term.name == "straggler" else None
    return f" (rank {straggler.rank})" if straggler else ""


def _allreduce_lines(analysis: ScalingAnalysis, page: Page) -> Iterator[Text]:
    stats = analysis.allreduce
    if stats is None:
        return
    sizes = ", ".join(_format_mb(size) for size in stats.bucket_bytes[:8]) + (" ..." if len(stats.bucket_bytes) > 8 else "")
    yield from labelled_lines(
        "sent   ", [f"{_format_mb(stats.total_bytes)} MB per step in {pluralize(len(stats.bucket_bytes), 'bucket')}: {sizes} MB"], page
    )
    items = [] if stats.allreduce_only_ms is None else [f"{format_rounded(stats.allreduce_only_ms)} ms for the all-reduce alone"]
    if stats.busbw and stats.max_busbw:
        reference = (
            f"of {_format_bandwidth(stats.max_busbw)} measured"
            if stats.busbw <= stats.max_busbw
            else f"above the {_format_bandwidth(stats.max_busbw)} measured before"
        )
        items.append(f"{_format_bandwidth(stats.busbw)} {reference}")
    if analysis.runs.scaling.allreduce_busbw:
        reached = ", ".join(
            f"{_format_bandwidth(value)} at {_format_mb(size)} MB" for size, value in analysis.runs.scaling.allreduce_busbw.items()
        )
        items.append(f"({reached})")
    yield from labelled_lines("busbw  ", items, page)
    share = stats.hidden_fraction
    overlap = [] if share is None else [f"{format_percent(share, 2)} of the all-reduce overlaps backward (timers)"]
    if stats.profiled_hidden_fraction is not None:
        overlap.append(f"{format_percent(stats.profiled_hidden_fraction, 2)} (profiler)")
    yield from labelled_lines("overlap", overlap, page)
    cost = (
        [] if stats.comm_cost_by_arms_ms is None else [f"other ranks cost {format_rounded(stats.comm_cost_by_arms_ms)} ms per step (arms)"]
    )
    if cost and stats.comm_cost_by_timers_ms is not None:
        cost.append(f"{format_rounded(stats.comm_cost_by_timers_ms)} ms (timers)")
    yield from labelled_lines("cost   ", cost, page)


def _not_measured_lines(job: Job, page: Page) -> Iterator[Text]:
    if job.scaling is None:
        return
    yield from not_measured_lines({skipped_name(each, job): skip_reason(each) for each in job.scaling.skipped}, page)
    if (job.scaling.busy_wait_cores or 0.0) > MAX_IDLE_CORES:
        text = f"an idle rank waiting for its turn kept {job.scaling.busy_wait_cores:.2f} cores busy"
        yield from styled(wrap_text("warning  ", text, page), CAUTION, len("warning"))


def _format_mb(size: float) -> str:
    return format_rounded(size / 1e6)


def _format_bandwidth(bytes_per_s: float) -> str:
    return f"{format_rounded(bytes_per_s / 1e9)} GB/s" if bytes_per_s >= 1e9 else f"{format_rounded(bytes_per_s / 1e6)} MB/s"
