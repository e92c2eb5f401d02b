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
from ddpbench.report.console import page_for, print_lines, print_sections
from ddpbench.report.format import MISSING, format_decimals, format_interval, format_percent, format_rounded, format_summands
from ddpbench.report.layout import CAUTION, LABEL, Page, align_columns, styled, wrap_items, wrap_text
from ddpbench.report.messages.checks import baseline_doubts_text
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.roles import role_name, skip_reason, skipped_name
from ddpbench.report.messages.scaling import LOSS_NAMES, explain_loss, losses_text
from ddpbench.report.messages.verdict import verdict_sentence
from ddpbench.report.pages.checks import check_lines, not_measured_lines, strict_failure_lines
from ddpbench.report.pages.header import labelled_lines, machine_text, throughput_unit, transport_text
from ddpbench.report.pages.ranks import straggler_lines
from ddpbench.report.pages.status import status_lines
from ddpbench.report.pages.verdict import verdict_lines

EFFICIENCY, LOST_TO = "efficiency %", "lost to"

UNRELIABLE = "in doubt"
MAX_IDLE_CORES = 0.05
"""A waiting rank that keeps at most this much of a core busy takes nothing from the others."""


def render_scaling(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print the verdict on ``job``, its efficiencies and the breakdown of its losses.

    The breakdown leads from N times one rank to the measured throughput. ``verbose`` adds the checks that passed; ``quiet`` prints the
    verdict only. ``path`` is the record's file, None if it could not be saved.
    """
    page, arms = page_for(console), scaling_runs(job)
    found = analyze_scaling(job, arms) if arms else None
    judged = job.scaling and job.scaling.verdict
    verdict = [*verdict_lines(judged, explain_loss(judged.evidence, job), page)] if judged else []
    if quiet:
        why = strict_failure_lines(_named(job), page) if job.records[0].config.strict else ()
        print_lines(console, [*verdict, *why])
        return
    sections: list[Sequence[Text]] = [[*_head(job, page)], [*status_lines(_named(job), page)], verdict]
    if arms and arms.ddp_by_ranks:
        down = _breakdown_lines(found, page) if found else ()
        sections.append([*_scaling_table(found.points if found else compute_scaling_points(arms, None), job, page), *down])
    if found:
        slow = straggler_lines(found.final, summarize(found.final).straggler, page)
        sections += [[*_allreduce_lines(found, page)], slow]
    checked = {name: record for name, record in _named(job).items() if verbose or record in (arms.ddp_by_ranks.values() if arms else ())}
    last = [*_left_out(job, page), *check_lines(checked, page, verbose), *([Text(str(path))] if path else [])]
    print_sections(console, [*sections, last])


def scaling_points_by_role(job: Job) -> dict[Role, ScalingPoint]:
    """The scaling points by the role of their arm; empty for other kinds of job."""
    arms = scaling_runs(job)
    if arms is None:
        return {}
    found = analyze_scaling(job, arms)
    return {ddp_role(each.ranks): each for each in (found.points if found else compute_scaling_points(arms, None))}


def scaling_findings(job: Job) -> Iterator[str]:
    """The scaling verdict and the breakdown in one line each, if available."""
    if job.scaling and (verdict := job.scaling.verdict):
        yield verdict_sentence(verdict, explain_loss(verdict.evidence, job))
    arms = scaling_runs(job)
    if arms and (found := analyze_scaling(job, arms)):
        yield ", ".join(_breakdown_items(found))


def _named(job: Job) -> dict[str, Record]:
    return {role_name(record.role, job): record for record in job.records}


def _head(job: Job, page: Page) -> Iterator[Text]:
    top = max(job.records, key=lambda record: record.world_size)
    config, scaling = top.config, job.scaling
    strong = scaling is not None and scaling.strong_scaling
    title = [config.workload, config.precision, "strong scaling" if strong else "weak scaling"]
    yield from styled(wrap_items("ddpbench scale  ", title, page, gap="  "), LABEL, len("ddpbench scale"))
    shared = (
        f"batch {top.global_batch_size} shared by {top.world_size}"
        if strong
        else f"batch {config.batch_size} a {device_noun(top.environment)}"
    )
    rounds = f"up to {pluralize(config.rounds, 'round')}, interleaved"
    where = [machine_text(top.environment), *filter(None, [transport_text(top.environment)])]
    fed = next((record.config.loader for record in job.records if record.role == WITH_DATA), None)
    batches = (
        f"batches that lie on the device; loader {fed} in one arm, '{role_name(WITH_DATA)}'" if fed else "batches that lie on the device"
    )
    yield from styled(wrap_items("", [*where, shared, batches, f"torch {top.environment.software.torch}", rounds], page))


def _scaling_table(points: Sequence[ScalingPoint], job: Job, page: Page) -> Iterator[Text]:
    device = device_noun(job.records[0].environment)
    heading = [f"{device}s", throughput_unit(job.records[0]), f"a {device}", EFFICIENCY, LOST_TO]
    cells = ([str(rung.ranks), *_throughput_cells(rung), efficiency_text(rung), losses_text(rung.largest_losses)] for rung in points)
    lines = align_columns([heading, *cells], ">>><<", page)
    yield from styled(lines, LABEL, len(lines[0]))
    if doubts := next((rung.baseline_doubts for rung in points if rung.baseline_doubts), None):
        reasons = baseline_doubts_text(doubts, job.records[0])
        text = f"more than {MAX_EFFICIENCY:.0%} of so many times one rank cannot be; of the one: {reasons}"
        yield from styled(wrap_text(f"{UNRELIABLE}  ", text, page), CAUTION, len(UNRELIABLE))


def _throughput_cells(point: ScalingPoint) -> tuple[str, str]:
    low, high = (point.interval.low, point.interval.high) if point.interval else (point.samples_per_s, point.samples_per_s)
    each = [value / point.ranks for value in (point.samples_per_s, low, high)]
    return format_interval(point.samples_per_s, low, high)[0], format_interval(each[0], each[1], each[2])[0]


def efficiency_text(point: ScalingPoint) -> str:
    """The efficiency in percent with its interval; an impossible one is marked."""
    if point.efficiency is None:
        return MISSING
    if point.ranks == 1:
        return "100"
    ratio = point.efficiency
    center, low, high = format_interval(100 * ratio.center, 100 * ratio.low, 100 * ratio.high)
    within = f" ({low} to {high})" if ratio.has_interval else f" ({pluralize(ratio.pairs, 'pair')})"
    return f"{center}{within}" + (f" {UNRELIABLE}" if point.baseline_doubts else "")


def _breakdown_lines(analysis: ScalingAnalysis, page: Page) -> Iterator[Text]:
    ideal, *items = _breakdown_items(analysis)
    yield Text()
    yield from styled(wrap_items(f"{ideal}  ", items, page), LABEL, len(ideal) + 2)


def _breakdown_items(analysis: ScalingAnalysis) -> list[str]:
    """``24,800 ideal``, each loss, ``= 23,900``."""
    way = analysis.breakdown
    decimals = 0 if way.measured_samples_per_s >= 1000 else 1 if way.measured_samples_per_s >= 100 else 2
    numbers = format_summands([way.ideal_samples_per_s, *(term.samples_per_s for term in way.terms)], decimals)
    items = [
        f"{LOSS_NAMES[term.name]} {_signed(printed)}{_uncertainty_text(term, decimals)}{_straggler_note(analysis, term)}"
        for term, printed in zip(way.terms, numbers[1:], strict=True)
    ]
    if way.term("data") is None:
        items.insert(1 if len(items) > 1 else 0, f"{LOSS_NAMES['data']} {MISSING}")
    reached = f"= {format_decimals(way.measured_samples_per_s, decimals)}{'' if way.term('data') is None else f' {role_name(WITH_DATA)}'}"
    return [f"{numbers[0]} ideal", *items, reached]


def _signed(printed: str) -> str:
    """With a plus sign for a gain, so that it stands out among losses."""
    return printed if printed.startswith("-") or not printed.strip("0.") else f"+{printed}"


def _uncertainty_text(term: LossTerm, decimals: int) -> str:
    return "" if term.half_width is None else f" +-{format_decimals(term.half_width, decimals)}"


def _straggler_note(analysis: ScalingAnalysis, term: LossTerm) -> str:
    slow = summarize(analysis.final).straggler if term.name == "straggler" else None
    return f" (rank {slow.rank})" if slow else ""


def _allreduce_lines(analysis: ScalingAnalysis, page: Page) -> Iterator[Text]:
    sent = analysis.allreduce
    if sent is None:
        return
    sizes = ", ".join(_format_mb(size) for size in sent.bucket_bytes[:8]) + (" ..." if len(sent.bucket_bytes) > 8 else "")
    yield from labelled_lines(
        "sent", [f"{_format_mb(sent.total_bytes)} MB a step in {pluralize(len(sent.bucket_bytes), 'bucket')}: {sizes} MB"], page
    )
    items = [] if sent.allreduce_only_ms is None else [f"{format_rounded(sent.allreduce_only_ms)} ms alone"]
    if sent.busbw and sent.max_busbw:
        of = (
            f"of {_format_bandwidth(sent.max_busbw)} measured"
            if sent.busbw <= sent.max_busbw
            else f"above the {_format_bandwidth(sent.max_busbw)} measured before"
        )
        items.append(f"bus {_format_bandwidth(sent.busbw)} {of}")
    if analysis.runs.scaling.allreduce_busbw:
        reached = ", ".join(
            f"{_format_bandwidth(value)} at {_format_mb(size)} MB" for size, value in analysis.runs.scaling.allreduce_busbw.items()
        )
        items.append(f"({reached})")
    yield from labelled_lines("bus", items, page)
    hidden = (
        [] if sent.hidden_fraction is None else [f"{format_percent(sent.hidden_fraction, 2)} of that behind the backward, by the clock"]
    )
    if sent.profiled_hidden_fraction is not None:
        hidden.append(f"{format_percent(sent.profiled_hidden_fraction, 2)} as the profiler sees it")
    yield from labelled_lines("hid", hidden, page)
    cost = (
        []
        if sent.comm_cost_by_arms_ms is None
        else [f"other ranks take {format_rounded(sent.comm_cost_by_arms_ms)} ms of a step by the arms"]
    )
    if cost and sent.comm_cost_by_timers_ms is not None:
        cost.append(f"{format_rounded(sent.comm_cost_by_timers_ms)} ms by the clock")
    yield from labelled_lines("cost", cost, page)


def _left_out(job: Job, page: Page) -> Iterator[Text]:
    if job.scaling is None:
        return
    yield from not_measured_lines({skipped_name(each, job): skip_reason(each) for each in job.scaling.skipped}, page)
    if (job.scaling.busy_wait_cores or 0.0) > MAX_IDLE_CORES:
        text = f"a rank that waited for its turn kept {job.scaling.busy_wait_cores:.2f} of a core busy"
        yield from styled(wrap_text("warning  ", text, page), CAUTION, len("warning"))


def _format_mb(size: float) -> str:
    return format_rounded(size / 1e6)


def _format_bandwidth(bytes_per_s: float) -> str:
    return f"{format_rounded(bytes_per_s / 1e9)} GB/s" if bytes_per_s >= 1e9 else f"{format_rounded(bytes_per_s / 1e6)} MB/s"
