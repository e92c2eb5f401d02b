"""The verdict: the bottleneck, why, and a command to copy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.registry import DATASETS
from ddpbench.record.remedy import Advice
from ddpbench.record.verdict import ScalingVerdict, Verdict
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, styled, wrap_command, wrap_hint, wrap_text
from ddpbench.report.messages.bottlenecks import Explanation
from ddpbench.report.messages.causes import parts_text
from ddpbench.report.messages.screening import faster_text
from ddpbench.report.messages.verdict import explain_verdict, next_step_text, repeatability_text, verdict_heading

GOOD_VERDICTS = ("compute-bound", "scales")
"""Verdicts on a run or a scale job that find nothing wrong."""

NOTHING_TO_GAIN = "no other setting to suggest"

NO_LOADER_HINT = "synthetic batches: no loader was measured; `--data-dir DIR` measures yours"


def record_verdict_lines(record: Record, page: Page, *, with_next: bool = True, advice: Advice | None = None) -> Iterator[Text]:
    """Verdict, reason and next command; for synthetic data also how to measure a real loader.

    Empty without a verdict. ``with_next`` is False if the page recommends a command that has been tried. ``advice`` may name settings that
    compute faster.
    """
    verdict = record.verdict
    if verdict is None:
        return
    explanation, is_good = explain_verdict(verdict, record), verdict.kind in GOOD_VERDICTS
    if advice and advice.code == "screened" and advice.computing and advice.computing_gain:
        faster = faster_text(advice.computing, advice.computing_gain)
        explanation, is_good = explanation._replace(claim=f"{explanation.claim}; {faster}"), False
    dataset, waits = record.script.dataset if record.script else "", verdict.kind in ("data-bound", "loader-contends-cpu")
    cost = parts_text(record.traces, record.sample_unit, dataset) if waits else ""
    yield from verdict_lines(verdict, explanation, page, with_next=with_next, is_good=is_good, cost=cost)
    if could_measure_loader(record):
        yield from styled(wrap_hint("  note  ", NO_LOADER_HINT, page), LABEL, len("  note"))


def could_measure_loader(record: Record) -> bool:
    """Whether batches are synthetic, but the workload could read files."""
    dataset = DATASETS.get(record.data.dataset) if record.data else None
    return record.config.loader == SYNTHETIC and (dataset is None or dataset.has_files)


def verdict_lines(
    verdict: Verdict | ScalingVerdict,
    explanation: Explanation,
    page: Page,
    *,
    with_next: bool = True,
    is_good: bool | None = None,
    cost: str = "",
) -> Iterator[Text]:
    """The bottleneck and its cost, its repeatability if not certain, why, what loading costs most, and the next step."""
    kind = verdict_heading(verdict)
    is_good = verdict.kind in GOOD_VERDICTS if is_good is None else is_good
    yield from styled(wrap_text(f"{kind}   ", explanation.claim, page), GOOD if is_good else CAUTION, len(kind))
    if confidence := repeatability_text(verdict):
        yield from styled(wrap_text("  sure  ", confidence, page), LABEL, len("  sure"))
    yield from styled(wrap_text("  why   ", explanation.reason, page), LABEL, len("  why"))
    if cost:
        yield from styled(wrap_text("  cost  ", cost, page), LABEL, len("  cost"))
    if not with_next:
        return
    if verdict.next:
        yield from styled(wrap_command("  next  ", next_step_text(verdict.next), page), LABEL, len("  next"))
    else:
        yield from styled(wrap_text("  next  ", NOTHING_TO_GAIN, page), LABEL, len("  next"))
