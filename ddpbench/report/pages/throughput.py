"""The figures: throughput with its intervals, the step, losses, memory, energy and utilisation."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.analysis.evidence import Reach, reach
from ddpbench.analysis.metrics import last_accuracy, seen_in
from ddpbench.analysis.summary import Summary
from ddpbench.analysis.text import device_word
from ddpbench.record.findings import Headline
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.text import count
from ddpbench.report.format import MISSING, gib, interval, percent, significant
from ddpbench.report.layout import Page, flow
from ddpbench.report.pages.header import rate
from ddpbench.report.styled import LABEL, inked

NOTHING = 1e-3
"""A loss below this is that of samples that the model knows."""


def figures(record: Record, summary: Summary, page: Page, verbose: bool = False) -> Iterator[Text]:
    """Throughput, step and memory. Where the figure is blocked so is what it could be computed from. Nothing without rounds."""
    if not summary.rounds:
        return
    within = reach(record)
    rows = {
        "throughput": _throughput(record, record.headline, within) if record.headline and within else [f"{MISSING} {rate(record)}"],
        "step": _step(record, summary, within),
        "memory": _resources(record, summary, verbose),
    }
    for label, items in rows.items():
        yield from inked(flow(f"{label:13}", items, page), LABEL, len(label))


def figure(record: Record) -> str:
    """The figure in one line: ``4,523 images/s (4,498 to 4,549)``, ``4,523 images/s (2 rounds: 4,498 to 4,549)``."""
    within, headline = reach(record), record.headline
    if within is None or headline is None:
        return f"{MISSING} {rate(record)}"
    center, low, high = interval(headline.images_per_s, within.low, within.high)
    if within.confidence is None:
        return f"{center} {rate(record)} ({_range(record, within)})"
    return f"{center} {rate(record)}" + (f" ({low} to {high})" if within.low < within.high else "")


def _throughput(record: Record, headline: Headline, within: Reach) -> Iterator[str]:
    ranks = record.world_size
    center, low, high = interval(headline.images_per_s, within.low, within.high)
    yield f"{center} {rate(record)}"
    if within.confidence is None:
        yield f"({_range(record, within)})"
    else:
        yield f"({low} to {high}, {within.confidence:.0%}, {_evidence(headline)})"
    if ranks > 1:
        each, _, _ = interval(headline.images_per_s / ranks, within.low / ranks, within.high / ranks)
        yield f"{each} a {device_word(record.environment)}"
    if headline.launch_figures or within.confidence is None or headline.launch_source == "assumed":
        return
    _, low, high = interval(headline.images_per_s, headline.launch_low, headline.launch_high)
    yield f"across launches {low} to {high} ({percent(headline.launch_sd, 1)} sd, {headline.launch_source})"


def _range(record: Record, within: Reach) -> str:
    """``2 rounds: 4,498 to 4,549``; ``one round: no interval``."""
    if within.of == 1:
        return "one round: no interval"
    _, low, high = interval(within.high, within.low, within.high)
    launched = record.headline is not None and record.headline.launch_figures
    return f"{within.of} {'launches' if launched else 'rounds'}: {low} to {high}"


def _evidence(headline: Headline) -> str:
    """What the interval is made from: the launches where there are several, else the rounds of one."""
    launches = len(headline.launch_figures)
    return f"{launches} launches, {percent(headline.launch_sd, 2)} sd" if launches else count(headline.rounds, "round")


def _step(record: Record, summary: Summary, within: Reach | None) -> Iterator[str]:
    headline, step_ms = record.headline, summary.step_ms
    if headline and within and step_ms:
        shorter, longer = within.low / headline.images_per_s, within.high / headline.images_per_s
        yield f"{interval(step_ms, step_ms * shorter, step_ms * longer)[0]} ms"
    else:
        yield f"{MISSING} ms"
    if record.preparation:
        yield f"first step after {significant(record.preparation.first_step_s, 2)} s"
    yield f"loss {_loss(summary.first_loss)} -> {_loss(summary.last_loss)}{_learnt_by_heart(record, summary)}"
    if (accuracy := last_accuracy(record)) is not None:
        yield f"accuracy {percent(accuracy)} on {seen_in(record)}"


def _resources(record: Record, summary: Summary, verbose: bool) -> Iterator[str]:
    if record.environment.device_type != "cuda":
        yield f"{gib(summary.rss_bytes)} GiB a rank, with its workers"
        return
    yield f"{gib(summary.peak_bytes)} of {gib(summary.total_bytes)} GiB a GPU"
    if verbose:
        yield f"{gib(summary.rss_bytes)} GiB a rank on the host, with its workers"
    known = record.headline is not None
    yield f"{significant(summary.joules_per_image if known else None, 2)} J/{record.item}"
    yield f"MFU {percent(summary.mfu if known else None, 2)} of measured"


def _learnt_by_heart(record: Record, summary: Summary) -> str:
    """The one batch that is there all the time is no training set: its loss goes to nothing, and that tells nothing."""
    known = record.config.loader == SYNTHETIC and summary.last_loss is not None and abs(summary.last_loss) < NOTHING
    return ", one batch learnt by heart" if known else ""


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else significant(loss)
