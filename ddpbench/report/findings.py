"""The conclusion: which limit the run hit, why, and a command to copy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.verdict import Verdict
from ddpbench.report.ink import CAUTION, GOOD, LABEL, inked
from ddpbench.report.layout import Page, advice, command, sentence

GOOD_NEWS = ("compute-bound", "scales")
"""Verdicts on a run and on a ladder that find nothing wrong."""

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
    """What it says behind its kind, then why, then the command to copy where there is one."""
    kind = _kind(verdict)
    yield from inked(sentence(f"{kind}   ", verdict.says, page), GOOD if verdict.kind in GOOD_NEWS else CAUTION, len(kind))
    yield from inked(sentence("  why   ", verdict.why, page), LABEL, len("  why"))
    if verdict.next:
        yield from inked(command("  next  ", verdict.next, page), LABEL, len("  next"))


def _kind(verdict: Verdict) -> str:
    """``DATA-BOUND, TOO FEW CORES``: with its cause, where there is one that the limit does not name already."""
    cause = verdict.cause if verdict.kind == "data-bound" else ""
    return ", ".join(filter(None, [verdict.kind, cause.replace("-", " ")])).upper()
