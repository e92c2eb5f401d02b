"""Checks of the data: files that were read again, skipped or shared, and held-out data."""

from __future__ import annotations

from itertools import chain

from ddpbench.record.checks import FilesSkipped, NotValidated, RepeatedSamples, RereadFiles, SharedHandles
from ddpbench.record.record import Record


def check_reread_files(record: Record) -> RereadFiles | None:
    return RereadFiles() if record.data and record.data.reread else None


def check_skipped_files(record: Record) -> FilesSkipped | None:
    skipped = (trace.loader_stats.skipped_files for trace in record.traces if trace.loader_stats)
    files = len(set(chain.from_iterable(skipped)))
    return FilesSkipped(files=files) if files else None


def check_shared_handles(record: Record) -> SharedHandles | None:
    """Of two or more workers: one alone reads what it has sought. A memory map has no position."""
    handles = [each for each in record.script.shared_handles if each.kind != "memory-map"] if record.script else []
    return SharedHandles(workers=record.workers, handles=handles) if handles and record.workers > 1 else None


def check_repeated_samples(record: Record) -> RepeatedSamples | None:
    compared = record.script.sample_comparison if record.script else None
    if compared is None or not compared.repeats_samples or record.workers <= 1:
        return None
    return RepeatedSamples(workers=record.workers)


def check_validation(record: Record) -> NotValidated | None:
    """Only if accuracy was requested, not if it is a by-product of fresh rounds."""
    requested = record.requested
    if not (requested and (requested.validate or requested.epochs)):
        return None
    validated = any(trace.numerics.accuracy is not None for trace in record.traces)
    return None if validated else NotValidated()
