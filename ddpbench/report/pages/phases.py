"""The phases of a step, the wait for other ranks and the unexplained rest, adding up to the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import fsum

from rich.text import Text

from ddpbench.analysis.summary import Summary, compute_phases_ms
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.trace import SCRIPT_PHASE
from ddpbench.report.format import format_decimals, format_summands, step_decimals
from ddpbench.report.grid import Grid, GridColumn
from ddpbench.report.layout import LABEL, Page, align_columns, styled, wrap_items

MAX_BAR_WIDTH = 25
EIGHTHS = " ▏▎▍▌▋▊▉"

DATA_WAIT = "data wait"
PEER_DATA_WAIT = "wait for peers' data"
"""The part of the phases "sync" and "broadcast" that waits for the data of other ranks."""

EXPOSED_SYNC = "exposed sync"
"""The rest of these two phases, waits for ranks that compute longer included.

``exposed_comm_ms`` in ``analysis/collective_wait.py`` is the part that is communication only.
"""

MIN_SHOWN_FRACTION = 0.02
"""Phases below this fraction of a step are summed up as OTHER, unless the page is verbose."""

MIN_SHOWN_WAIT_FRACTION = 0.005
"""Likewise for waits for data, which add up to the share that a verdict names, and for gradient sync."""

OTHER = "other"


def phase_table(record: Record, summary: Summary, page: Page) -> Iterator[Text]:
    """The phases in ms and percent, means over ranks, with bars; phases that hardly take time are one row unless the page is verbose.

    A verbose page adds the buffer broadcast and the host run-ahead. Empty without rounds.
    """
    if summary.step_ms is None:
        return
    decimals = step_decimals(summary.step_ms)
    spans = _spans(record, summary)
    spans = spans if page.verbose else _sum_small(spans, summary.step_ms)
    shares = [100 * span / summary.step_ms for span in spans.values()]
    cells = zip(spans, format_summands([*spans.values()], decimals), format_summands(shares, 1), strict=True)
    head, *lines = align_columns(
        [[_title(record), "ms", "%"], *([f"  {name}", span_ms, percent] for name, span_ms, percent in cells)], "<>>", page
    )
    yield from styled([head], LABEL)
    for line, share in zip(lines, shares, strict=True):
        yield Text(f"{line}  {draw_bar(share / 100, page)}".rstrip())
    details = [*_broadcast_items(summary, decimals), *_host_lead_items(record, summary, decimals)] if page.verbose else []
    yield from styled(wrap_items("  ", details, page) if details else [])


def phase_grids(record: Record, summary: Summary) -> Iterator[Grid]:
    """All phases in ms and percent, means over ranks; none without rounds."""
    if summary.step_ms is None:
        return
    spans = _spans(record, summary)
    milliseconds = format_summands([*spans.values()], step_decimals(summary.step_ms))
    percent = format_summands([100 * span / summary.step_ms for span in spans.values()], 1)
    yield Grid(_title(record), [GridColumn("phase", [*spans])], [GridColumn("ms", milliseconds), GridColumn("%", percent)])


def _title(record: Record) -> str:
    return "step time by phase" + (" (mean of ranks)" if record.world_size > 1 else "")


def _sum_small(spans: Mapping[str, float], step_ms: float) -> dict[str, float]:
    """``spans`` with all that hardly take time in one, which is last; a single one keeps its name."""
    smallest = {
        name: MIN_SHOWN_WAIT_FRACTION if name in (DATA_WAIT, PEER_DATA_WAIT, EXPOSED_SYNC) else MIN_SHOWN_FRACTION for name in spans
    }
    small = [name for name, span in spans.items() if span < smallest[name] * step_ms]
    if len(small) < 2:
        return {**spans}
    return {**{name: span for name, span in spans.items() if name not in small}, OTHER: fsum(spans[name] for name in small)}


def draw_bar(share: float, page: Page) -> str:
    """A bar of ``MAX_BAR_WIDTH`` columns for a share of 1, in eighths of a column if the page is unicode."""
    if not page.unicode:
        return "#" * round(share * MAX_BAR_WIDTH)
    full, eighths = divmod(max(round(share * MAX_BAR_WIDTH * 8), 0), 8)
    return ("█" * full + EIGHTHS[eighths]).rstrip()


def _spans(record: Record, summary: Summary) -> dict[str, float]:
    """Name on the page -> ms.

    The waits for other ranks are two entries: for their data, and the rest of the buffer broadcast and the exposed all-reduce.
    """
    phases = summary.phases_ms
    copies = "host to device" if record.environment.device_type == "cuda" else "batch preparation"
    has_no_loader = record.config.loader == SYNTHETIC or is_step_an_update(record)
    smallest_shown, starts_ms = 0.5 / 10 ** step_decimals(summary.step_ms or 0.0), summary.epoch_start_ms
    starts = {"epoch start": starts_ms} if starts_ms >= smallest_shown else {}
    peers_ms = summary.peer_data_wait_ms if record.uses_ddp and (summary.peer_data_wait_ms or 0.0) >= smallest_shown else None
    peers = {} if peers_ms is None else {PEER_DATA_WAIT: peers_ms}
    loading = {} if has_no_loader else {**starts, DATA_WAIT: phases["data"], **peers, copies: phases["host_to_device"]}
    forward_ms, backward_ms, optimizer_ms = compute_phases_ms(record, summary)
    spans = {**loading, "forward": forward_ms, "backward": backward_ms}
    exposed_sync = phases["sync"] + phases["broadcast"] - (peers_ms or 0.0 if loading else 0.0)
    if record.uses_ddp and (record.world_size > 1 or exposed_sync >= smallest_shown):  # DDP costs time on a single rank, too
        spans[EXPOSED_SYNC] = exposed_sync
    rest = phases["unexplained"] if loading else phases["unexplained"] + phases["data"] + phases["host_to_device"]
    script_name = "data and script" if is_step_an_update(record) else "script"
    script = {script_name: phases[SCRIPT_PHASE]} if SCRIPT_PHASE in phases else {}
    return {**spans, "optimizer": optimizer_ms, **script, "unexplained": rest}


def is_step_an_update(record: Record) -> bool:
    """Whether a step of a watched script is an update, since no loader is watched that gives its batches."""
    return record.script is not None and record.script.step == "update"


def _broadcast_items(summary: Summary, decimals: int) -> Iterator[str]:
    waits_ms, late_ms = summary.collective_wait_ms or 0.0, summary.peer_data_wait_ms or 0.0
    broadcast_ms = min(summary.phases_ms["broadcast"], max(0.0, waits_ms - late_ms))  # it may wait for the data of rank 0 itself
    if broadcast_ms >= 0.5 / 10**decimals:
        yield f"buffer broadcast {format_decimals(broadcast_ms, decimals)} of the exposed sync"


def _host_lead_items(record: Record, summary: Summary, decimals: int) -> Iterator[str]:
    if summary.host_lead_ms is not None:
        yield f"host runs {format_decimals(summary.host_lead_ms, decimals)} ms ahead of the GPU"
    if activity := record.kernel_activity:
        yield f"kernels busy {format_decimals(activity.kernel_ms, decimals)} of {format_decimals(activity.step_ms, decimals)} ms"
