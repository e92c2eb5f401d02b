"""The verdict: the bottleneck, why, and a command to copy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.verdict import Verdict
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, styled, wrap_command, wrap_hint, wrap_text

GOOD_VERDICTS = ("compute-bound", "scales")
"""Verdicts on a run or a scale job that find nothing wrong."""

NOTHING_TO_GAIN = "nothing to gain: no other setting to suggest"

NO_LOADER_HINT = "synthetic: your own loader was not measured; add `--data-dir DIR`"


def record_verdict_lines(record: Record, page: Page) -> Iterator[Text]:
    """Verdict, reason and next command; for synthetic data also how to measure a real loader.

    Empty without a verdict.
    """
    verdict = record.verdict
    if verdict is None:
        return
    yield from verdict_lines(verdict, page)
    if record.config.loader == SYNTHETIC:
        yield from styled(wrap_hint("  data  ", NO_LOADER_HINT, page), LABEL, len("  data"))


def verdict_lines(verdict: Verdict, page: Page) -> Iterator[Text]:
    """The bottleneck and its cost, its repeatability if not certain, why, and the next command."""
    kind = _verdict_heading(verdict)
    yield from styled(wrap_text(f"{kind}   ", verdict.says, page), GOOD if verdict.kind in GOOD_VERDICTS else CAUTION, len(kind))
    if sure := confidence_text(verdict):
        yield from styled(wrap_text("  sure  ", sure, page), LABEL, len("  sure"))
    yield from styled(wrap_text("  why   ", verdict.why, page), LABEL, len("  why"))
    if verdict.next:
        yield from styled(wrap_command("  next  ", verdict.next, page), LABEL, len("  next"))
    elif verdict.kind in GOOD_VERDICTS:
        yield from styled(wrap_text("  next  ", NOTHING_TO_GAIN, page), LABEL, len("  next"))


def verdict_label(verdict: Verdict) -> str:
    """``data-bound``, ``probably sync-bound``."""
    return f"probably {verdict.kind}" if verdict.is_probable else verdict.kind


def confidence_text(verdict: Verdict) -> str:
    """``81% of resamples name this limit, else straggler``.

    Empty if the verdict is certain or states its own shares.
    """
    shares = []
    if verdict.is_probable:
        shares.append(f"{verdict.repeatability:.0%} of resamples name this limit{_runner_up_text(verdict.runner_up)}")
    if verdict.is_cause_probable:
        of = "of these" if shares else "of resamples"
        shares.append(f"{verdict.cause_repeatability:.0%} {of} name this cause{_runner_up_text(verdict.cause_runner_up)}")
    return "; ".join(shares)


def verdict_sentence(verdict: Verdict) -> str:
    """The verdict in one sentence: bottleneck, cost, reason, and repeatability if not certain."""
    sure = confidence_text(verdict)
    return f"{verdict_label(verdict)}: {verdict.says}; {verdict.why}" + (f" ({sure})" if sure else "")


def _runner_up_text(runner_up: str) -> str:
    return f", else {runner_up.replace('-', ' ')}" if runner_up else ""


def _verdict_heading(verdict: Verdict) -> str:
    """``DATA-BOUND, PROBABLY TOO FEW CORES``; the cause only if the kind does not name it already."""
    cause = verdict.cause.replace("-", " ") if verdict.kind == "data-bound" else ""
    if cause and verdict.is_cause_probable:
        cause = f"probably {cause}"
    return ", ".join(filter(None, [verdict_label(verdict), cause])).upper()
