"""The conclusion: which limit the run hit, why, and a command to copy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.record.findings import Verdict
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.report.layout import Page, advice, command, sentence
from ddpbench.report.styled import CAUTION, GOOD, LABEL, inked

GOOD_NEWS = ("compute-bound", "scales")
"""Verdicts on a run and on a ladder that find nothing wrong."""

NOTHING_TO_GAIN = "nothing to gain: no other setting to suggest"

NO_LOADER = "synthetic: your own loader was not measured; add `--data-dir DIR`"


def findings(record: Record, page: Page) -> Iterator[Text]:
    """Verdict, why, next; for synthetic data also how to have one's own loader measured. Nothing without a verdict."""
    verdict = record.verdict
    if verdict is None:
        return
    yield from verdict_lines(verdict, page)
    if record.config.loader == SYNTHETIC:
        yield from inked(advice("  data  ", NO_LOADER, page), LABEL, len("  data"))


def verdict_lines(verdict: Verdict, page: Page) -> Iterator[Text]:
    """The limit and what it costs, how often it repeats if not always, why, and the command to copy if there is one."""
    kind = _kind(verdict)
    yield from inked(sentence(f"{kind}   ", verdict.says, page), GOOD if verdict.kind in GOOD_NEWS else CAUTION, len(kind))
    if sure := how_sure(verdict):
        yield from inked(sentence("  sure  ", sure, page), LABEL, len("  sure"))
    yield from inked(sentence("  why   ", verdict.why, page), LABEL, len("  why"))
    if verdict.next:
        yield from inked(command("  next  ", verdict.next, page), LABEL, len("  next"))
    elif verdict.kind in GOOD_NEWS:
        yield from inked(sentence("  next  ", NOTHING_TO_GAIN, page), LABEL, len("  next"))


def named(verdict: Verdict) -> str:
    """``data-bound``, ``probably sync-bound``."""
    return f"probably {verdict.kind}" if verdict.is_probable else verdict.kind


def how_sure(verdict: Verdict) -> str:
    """``81% of resamples name this limit, else straggler``; empty for a plain verdict, and for one that names its shares itself."""
    shares = []
    if verdict.is_probable:
        shares.append(f"{verdict.repeatability:.0%} of resamples name this limit{_else(verdict.runner_up)}")
    if verdict.cause_is_probable:
        of = "of these" if shares else "of resamples"
        shares.append(f"{verdict.cause_repeatability:.0%} {of} name this cause{_else(verdict.cause_runner_up)}")
    return "; ".join(shares)


def verdict_text(verdict: Verdict) -> str:
    """The verdict in one sentence: the limit, what it costs, why, and how often it repeats if not always."""
    sure = how_sure(verdict)
    return f"{named(verdict)}: {verdict.says}; {verdict.why}" + (f" ({sure})" if sure else "")


def _else(runner_up: str) -> str:
    return f", else {runner_up.replace('-', ' ')}" if runner_up else ""


def _kind(verdict: Verdict) -> str:
    """``DATA-BOUND, PROBABLY TOO FEW CORES``; the cause only if the limit does not name it already."""
    cause = verdict.cause.replace("-", " ") if verdict.kind == "data-bound" else ""
    if cause and verdict.cause_is_probable:
        cause = f"probably {cause}"
    return ", ".join(filter(None, [named(verdict), cause])).upper()
