"""Checks of the data: files that were read again or skipped, and held-out data."""

from __future__ import annotations

from itertools import chain

from ddpbench.record.checks import FilesSkipped, NotValidated, RereadFiles
from ddpbench.record.record import Record


def check_reread_files(record: Record) -> RereadFiles | None:
    return RereadFiles() if record.data and record.data.reread else None


def check_skipped_files(record: Record) -> FilesSkipped | None:
    skipped = (trace.loader_stats.skipped_files for trace in record.traces if trace.loader_stats)
    files = len(set(chain.from_iterable(skipped)))
    return FilesSkipped(files=files) if files else None


def check_validation(record: Record) -> NotValidated | None:
    """Only if accuracy was requested, not if it is a by-product of fresh rounds."""
    requested = record.requested
    if not (requested and (requested.validate or requested.epochs)):
        return None
    validated = any(trace.numerics.accuracy is not None for trace in record.traces)
    return None if validated else NotValidated()
