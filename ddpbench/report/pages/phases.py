"""The phases of a step, the wait for other ranks and the unexplained rest, adding up to the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.summary import Summary, compute_phases_ms
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.trace import SCRIPT_PHASE
from ddpbench.report.format import format_decimals, format_summands, step_decimals
from ddpbench.report.layout import LABEL, Page, align_columns, styled, wrap_items

MAX_BAR_WIDTH = 25
EIGHTHS = " ▏▎▍▌▋▊▉"
EXPOSED_SYNC = "exposed sync"
"""Mean over ranks of the phases "sync" and "broadcast", waits for late ranks included.

``exposed_comm_ms`` in ``analysis/collective_wait.py`` is the part that is communication only.
"""


def phase_table(record: Record, summary: Summary, page: Page) -> Iterator[Text]:
    """The phases in ms and percent, means over ranks, with bars; then the host run-ahead.

    Empty without rounds.
    """
    if summary.step_ms is None:
        return
    decimals = step_decimals(summary.step_ms)
    spans = _spans(record, summary)
    shares = [100 * span / summary.step_ms for span in spans.values()]
    title = "step time by phase" + (" (mean of ranks)" if record.world_size > 1 else "")
    cells = zip(spans, format_summands([*spans.values()], decimals), format_summands(shares, 1), strict=True)
    head, *lines = align_columns([[title, "ms", "%"], *([f"  {name}", span_ms, percent] for name, span_ms, percent in cells)], "<>>", page)
    yield from styled([head], LABEL)
    for name, line, share in zip(spans, lines, shares, strict=True):
        with_bar = f"{line}  {draw_bar(share / 100, page)}".rstrip()
        yield from styled(_with_notes(with_bar, _exposed_sync_notes(summary, decimals) if name == EXPOSED_SYNC else [], page))
    run_ahead = list(_host_lead_items(record, summary, decimals))
    yield from styled(wrap_items("  ", run_ahead, page) if run_ahead else [])


def draw_bar(share: float, page: Page) -> str:
    """A bar of ``MAX_BAR_WIDTH`` columns for a share of 1, in eighths of a column if the page is unicode."""
    if not page.unicode:
        return "#" * round(share * MAX_BAR_WIDTH)
    full, eighths = divmod(max(round(share * MAX_BAR_WIDTH * 8), 0), 8)
    return ("█" * full + EIGHTHS[eighths]).rstrip()


def _spans(record: Record, summary: Summary) -> dict[str, float]:
    """Name on the page -> ms.

    The waits for other ranks are one entry: the buffer broadcast that waits for rank 0 and the exposed all-reduce.
    """
    phases = summary.phases_ms
    copies = "host to device" if record.environment.device_type == "cuda" else "batch preparation"
    has_no_loader = record.config.loader == SYNTHETIC or is_step_an_update(record)
    smallest_shown, starts_ms = 0.5 / 10 ** step_decimals(summary.step_ms or 0.0), summary.epoch_start_ms
    starts = {"epoch start": starts_ms} if starts_ms >= smallest_shown else {}
    loading = {} if has_no_loader else {**starts, "data wait": phases["data"], copies: phases["host_to_device"]}
    forward_ms, backward_ms, optimizer_ms = compute_phases_ms(record, summary)
    spans = {**loading, "forward": forward_ms, "backward": backward_ms}
    exposed_sync = phases["sync"] + phases["broadcast"]
    if record.uses_ddp and (record.world_size > 1 or exposed_sync >= smallest_shown):  # DDP costs time on a single rank, too
        spans[EXPOSED_SYNC] = exposed_sync
    rest = phases["unexplained"] if loading else phases["unexplained"] + phases["data"] + phases["host_to_device"]
    script_name = "data and script" if is_step_an_update(record) else "script"
    script = {script_name: phases[SCRIPT_PHASE]} if SCRIPT_PHASE in phases else {}
    return {**spans, "optimizer": optimizer_ms, **script, "unexplained": rest}


def is_step_an_update(record: Record) -> bool:
    """Whether a step of a watched script is an update, since no loader is watched that gives its batches."""
    return record.script is not None and record.script.step == "update"


def _exposed_sync_notes(summary: Summary, decimals: int) -> list[str]:
    smallest_shown = 0.5 / 10**decimals
    parts = {"peer data wait": summary.peer_data_wait_ms or 0.0, "buffer broadcast": summary.phases_ms["broadcast"]}
    return [f"{format_decimals(span, decimals)} {name}" for name, span in parts.items() if span >= smallest_shown]


def _with_notes(line: str, notes: Sequence[str], page: Page) -> list[str]:
    """``notes`` stacked to the right of ``line``, or below it if they are too wide."""
    if not notes or len(line) + 2 + max(map(len, notes)) > page.width:
        return [line, *(f"    {note}" for note in notes)]
    first, *others = notes
    return [f"{line}  {first}", *(" " * (len(line) + 2) + note for note in others)]


def _host_lead_items(record: Record, summary: Summary, decimals: int) -> Iterator[str]:
    if summary.host_lead_ms is not None:
        yield f"host runs {format_decimals(summary.host_lead_ms, decimals)} ms ahead of the GPU"
    if activity := record.kernel_activity:
        yield f"kernels busy {format_decimals(activity.kernel_ms, decimals)} of {format_decimals(activity.step_ms, decimals)} ms"
