"""What to try next in a user's own script, in the script's own terms: the arguments of its DataLoader, how its model trains."""

from __future__ import annotations

from math import ceil

from ddpbench.analysis.command import DATALOADER_FIELDS, TOP_COMMAND, CommandBuilder
from ddpbench.analysis.cpu_demand import cpu_demand
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.recommend import is_rejected, recommend
from ddpbench.record.bottleneck import TooShort
from ddpbench.record.prediction import FUSED, Scenario
from ddpbench.record.record import Record
from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.record.verdict import ChangeDataLoader, FuseKernels, NextStep, RaiseTimeLimit, RunCommand, Verdict

SCRIPT_FIELDS = (*DATALOADER_FIELDS, "fused_kernels")
"""Fields of a scenario that a script can make."""


def is_script_change(scenario: Scenario) -> bool:
    """Whether arguments of a DataLoader, or fused kernels, can express all of ``scenario``."""
    return all(getattr(scenario, name) is None or name in SCRIPT_FIELDS for name in scenario.__struct_fields__)


def shared_in_workers(scenario: Scenario, record: Record) -> list[SharedHandle]:
    """What workers would share with ``scenario``, unless each opened its own; empty without workers, or with those of fused kernels."""
    workers = record.workers if scenario.workers is None else scenario.workers
    return record.script.shared_handles if record.script and workers and scenario != FUSED else []


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
    """Whether ``scenario`` is worth a trial in a script even if its gain is unknown: fused kernels, or workers and nothing else."""
    return scenario == FUSED or bool(scenario.only_workers)


def script_change(scenario: Scenario, record: Record) -> ChangeDataLoader | FuseKernels:
    """What to write in the script of ``record`` for ``scenario``."""
    return FuseKernels(channels_last=record.config.channels_last) if scenario == FUSED else dataloader_change(scenario, record)


def dataloader_change(scenario: Scenario, record: Record) -> ChangeDataLoader:
    """The arguments that turn the DataLoader of ``record`` into that of ``scenario``, in the spelling of a script."""
    compared = other_samples(scenario, record)
    return ChangeDataLoader(
        num_workers=scenario.workers,
        prefetch_factor=scenario.prefetch,
        pin_memory=scenario.pin_memory,
        persistent_workers=True if scenario.keeps_workers and not record.rebuilds_loader else None,
        in_order=scenario.in_order,
        shared_handles=shared_in_workers(scenario, record),
        divide_samples=compared is not None and compared.repeats_samples,
    )


def script_step(inputs: AnalysisInput, verdict: Verdict) -> NextStep | None:
    """The next step after ``verdict`` on a script; None if no single change suggests itself."""
    if inputs.controls.diagnosis is not None:
        script = inputs.record.script
        if isinstance(verdict.evidence, TooShort):
            return RaiseTimeLimit() if script and script.ended_early else None
        return _recommended_change(inputs, verdict)
    match verdict.kind:
        case "data-bound":
            return _more_workers(inputs)
        case "epoch-start-bound" if not inputs.record.rebuilds_loader:
            return ChangeDataLoader(persistent_workers=True)
        case "host-to-device-bound" if not inputs.record.config.pin_memory:
            return pinned_memory_change(inputs.record)
        case "noisy-neighbour":
            return RunCommand(TOP_COMMAND)
    return None


def _recommended_change(inputs: AnalysisInput, verdict: Verdict) -> NextStep | None:
    """The first remedy of a diagnosis that the script can make, or a command that shows more; none whose trial failed or was slower."""
    for remedy in recommend(CommandBuilder(inputs.record, "diagnose"), inputs, verdict):
        if is_rejected(remedy, inputs) or (remedy.scenario is not None and _has_other_samples(remedy.scenario, inputs.record)):
            continue
        if remedy.code == "fused-kernels":
            return script_change(FUSED, inputs.record)
        if remedy.scenario is not None and is_script_change(remedy.scenario) and remedy.code != "all-cores-workers":
            return script_change(remedy.scenario, inputs.record)
        if remedy.code == "pinned-memory-and-worker":
            return pinned_memory_change(inputs.record)
        if remedy.code in ("list-processes", "inspect-straggler"):
            return RunCommand(remedy.command)
    return None


def _has_other_samples(scenario: Scenario, record: Record) -> bool:
    """Whether its workers read other samples. Those of a stream can be divided among them."""
    compared = other_samples(scenario, record)
    return compared is not None and not compared.repeats_samples


def pinned_memory_change(record: Record) -> ChangeDataLoader:
    """A DataLoader without workers has no thread that pins batches."""
    return dataloader_change(Scenario(workers=None if record.workers else 1, pin_memory=True), record)


def _more_workers(inputs: AnalysisInput) -> ChangeDataLoader | None:
    """As many workers as deliver a batch per step without waits; None if these run already.

    At most as many as there are cores for, but one in any case: it prepares a batch while the process trains.

    It assumes that all workers are busy while the run waits, and that twice the workers deliver twice the batches. Without workers, the
    wait is the time in which one worker would prepare a batch.
    """
    workers, training_ms = inputs.record.workers, inputs.step_ms - inputs.data_wait_ms
    batch_ms = workers * inputs.step_ms if workers else inputs.data_wait_ms  # that one worker takes
    suggested = min(ceil(batch_ms / training_ms), max(1, cpu_demand(inputs.record).max_workers))
    shared = shared_in_workers(Scenario(workers=suggested), inputs.record)
    return ChangeDataLoader(num_workers=suggested, shared_handles=shared) if suggested > workers else None
