"""Remedies in the terms of a user's own script: the arguments of its DataLoader, how its model trains."""

from __future__ import annotations

from msgspec.structs import replace

from ddpbench.analysis.command import DATALOADER_FIELDS
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Record
from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.record.verdict import ChangeDataLoader


def is_script_change(scenario: Scenario) -> bool:
    """Whether arguments of a DataLoader can express all of ``scenario``."""
    return all(getattr(scenario, name) is None or name in DATALOADER_FIELDS for name in scenario.__struct_fields__)


def shared_in_workers(scenario: Scenario, record: Record) -> list[SharedHandle]:
    """What workers would share with ``scenario``, unless each opened its own; empty without workers."""
    workers = 0 if scenario.has_no_workers else record.workers if scenario.workers is None else scenario.workers
    return record.script.shared_handles if record.script and workers else []


def other_samples(scenario: Scenario, record: Record) -> SampleComparison | None:
    """The comparison that speaks against the workers of ``scenario``: they read other samples, or that is unknown; None if none does.

    One worker of a stream has no other to repeat.
    """
    comparison = record.script.sample_comparison if record.script else None
    if comparison is None or scenario.workers is None or scenario.workers <= int(comparison.is_stream):
        return None
    return comparison if comparison.changes_samples else None


def may_try(scenario: Scenario, record: Record) -> bool:
    """Whether a diagnosis can try ``scenario``: the script can make it, and workers share no open file and no sample."""
    return is_script_change(scenario) and not shared_in_workers(scenario, record) and not other_samples(scenario, record)


def is_tried_unpredicted(scenario: Scenario) -> bool:
    """Whether ``scenario`` is worth a trial in a script even if its gain is unknown: workers and nothing else.

    To fit in memory, each worker may prefetch a single batch.
    """
    without_prefetch = replace(scenario, prefetch=None) if scenario.prefetch == 1 else scenario
    return bool(without_prefetch.only_workers)


def dataloader_change(scenario: Scenario, record: Record) -> ChangeDataLoader:
    """The arguments that turn the DataLoader of ``record`` into that of ``scenario``, in the spelling of a script."""
    compared = other_samples(scenario, record)
    return ChangeDataLoader(
        num_workers=scenario.workers,
        prefetch_factor=scenario.prefetch,
        pin_memory=scenario.pin_memory,
        persistent_workers=True if scenario.keeps_workers and not record.rebuilds_loader else None,
        in_order=scenario.in_order,
        resident=scenario.resident,
        decode_on_gpu=scenario.decode_on_gpu,
        ready_indices=scenario.ready_indices,
        shared_handles=shared_in_workers(scenario, record),
        divide_samples=compared is not None and compared.repeats_samples,
    )


def pinned_memory_change(record: Record) -> ChangeDataLoader:
    """A DataLoader without workers has no thread that pins batches."""
    return dataloader_change(Scenario(workers=None if record.workers else 1, pin_memory=True), record)
