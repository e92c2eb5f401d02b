"""Throughput with its intervals, step time, loss, memory, energy and utilization."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.analysis.metrics import accuracy_split, last_accuracy
from ddpbench.analysis.summary import Summary
from ddpbench.analysis.throughput import ThroughputInterval, throughput_interval
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record, ThroughputEstimate
from ddpbench.record.text import pluralize
from ddpbench.report.format import MISSING, format_gib, format_interval, format_percent, format_significant
from ddpbench.report.layout import LABEL, Page, styled, wrap_items
from ddpbench.report.messages.arms import throughput_unit
from ddpbench.report.messages.phrases import device_noun


def throughput_lines(record: Record, summary: Summary, page: Page) -> Iterator[Text]:
    """Throughput, step and memory; empty without rounds.

    If the throughput is blocked, so are the values derived from it.
    """
    if not summary.rounds:
        return
    interval = throughput_interval(record)
    rows = {
        "throughput": _throughput(record, record.throughput, interval)
        if record.throughput and interval
        else [f"{MISSING} {throughput_unit(record)}"],
        "step": _step(record, summary, interval),
        "memory": _resources(record, summary, page.verbose),
    }
    for label, items in rows.items():
        yield from styled(wrap_items(f"{label:13}", items, page), LABEL, len(label))


def throughput_text(record: Record) -> str:
    """The throughput in one line.

    ``4,523 images/s (4,498 to 4,549)`` or ``4,523 images/s (2 rounds: 4,498 to 4,549)``.
    """
    within, headline = throughput_interval(record), record.throughput
    if within is None or headline is None:
        return f"{MISSING} {throughput_unit(record)}"
    center, low, high = format_interval(headline.samples_per_s, within.low, within.high)
    if within.confidence is None:
        return f"{center} {throughput_unit(record)} ({_range(record, within)})"
    return f"{center} {throughput_unit(record)}" + (f" ({low} to {high})" if within.low < within.high else "")


def _throughput(record: Record, headline: ThroughputEstimate, within: ThroughputInterval) -> Iterator[str]:
    ranks = record.world_size
    center, low, high = format_interval(headline.samples_per_s, within.low, within.high)
    yield f"{center} {throughput_unit(record)}"
    if within.confidence is None:
        yield f"({_range(record, within)})"
    else:
        yield f"({low} to {high}, {within.confidence:.0%}, {_sample_text(headline)})"
    if ranks > 1:
        each, _, _ = format_interval(headline.samples_per_s / ranks, within.low / ranks, within.high / ranks)
        yield f"{each} per {device_noun(record.environment)}"
    if headline.launch_samples_per_s or within.confidence is None or headline.launch_source == "assumed":
        return
    _, low, high = format_interval(headline.samples_per_s, headline.launch_low, headline.launch_high)
    yield f"across launches {low} to {high} ({format_percent(headline.launch_sd, 1)} sd, {headline.num_launches} earlier runs)"


def _range(record: Record, within: ThroughputInterval) -> str:
    """``2 rounds: 4,498 to 4,549``; ``one round: no interval``."""
    if within.num_values == 1:
        return "one round: no interval"
    _, low, high = format_interval(within.high, within.low, within.high)
    launched = record.throughput is not None and record.throughput.launch_samples_per_s
    return f"{within.num_values} {'launches' if launched else 'rounds'}: {low} to {high}"


def _sample_text(headline: ThroughputEstimate) -> str:
    """The samples of the interval: launches if there are several, else rounds."""
    launches = len(headline.launch_samples_per_s)
    return f"{launches} launches, {format_percent(headline.launch_sd, 2)} sd" if launches else pluralize(headline.rounds, "round")


def _step(record: Record, summary: Summary, within: ThroughputInterval | None) -> Iterator[str]:
    headline, step_ms = record.throughput, summary.step_ms
    if headline and within and step_ms:
        shorter, longer = within.low / headline.samples_per_s, within.high / headline.samples_per_s
        yield f"{format_interval(step_ms, step_ms * shorter, step_ms * longer)[0]} ms"
    else:
        yield f"{MISSING} ms"
    if record.warmup:
        cache = f" ({record.warmup.compile_cache} compile cache)" if record.warmup.compile_cache else ""
        yield f"first step {format_significant(record.warmup.first_step_s, 2)} s{cache}"
    if record.script is None:  # the losses of a watched script are not read, which would synchronise
        on = " (synthetic)" if record.config.loader == SYNTHETIC else ""  # which only shows that the model trains
        yield f"loss {_loss(summary.first_loss)} -> {_loss(summary.last_loss)}{on}"
    if (accuracy := last_accuracy(record)) is not None:
        yield f"accuracy {format_percent(accuracy)} on {accuracy_split(record)}"


def _resources(record: Record, summary: Summary, verbose: bool) -> Iterator[str]:
    if record.environment.device_type != "cuda":
        yield f"{format_gib(summary.rss_bytes)} GiB per rank with its workers"
        return
    yield f"{format_gib(summary.peak_allocated_bytes)} of {format_gib(summary.device_total_bytes)} GiB per GPU"
    if verbose:
        yield f"{format_gib(summary.rss_bytes)} GiB host memory per rank with its workers"
    if record.script is not None:
        return  # neither energy nor FLOPs are measured
    known = record.throughput is not None
    yield f"{format_significant(summary.joules_per_sample if known else None, 2)} J/{record.sample_unit}"
    yield f"MFU {format_percent(summary.mfu if known else None, 2)} of measured"


def _loss(loss: float | None) -> str:
    return "non-finite" if loss is None else format_significant(loss)
