"""All checks of a record, and the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from ddpbench.analysis.checks.machine import (
    check_allocator_retries,
    check_cpu_demand,
    check_infiniband,
    check_mfu,
    check_node_balance,
    check_other_processes,
    check_power_cap,
    check_remeasured_rounds,
    check_starved_ranks,
    check_throttling,
)
from ddpbench.analysis.checks.rounds import check_drift, check_length, check_noise, check_relocations
from ddpbench.analysis.checks.training import (
    check_loss_is_finite,
    check_loss_scale_used,
    check_parameters_change,
    check_params_in_sync,
    check_precision,
    check_repeated_samples,
    check_reread_files,
    check_shared_handles,
    check_skipped_files,
    check_skipped_steps,
    check_validation,
)
from ddpbench.record.checks import (
    AllocRetry,
    AnyCheck,
    Check,
    Drift,
    FilesSkipped,
    FrozenParameters,
    ImplausibleMfu,
    MeasurementTooShort,
    NoInfiniband,
    Noisy,
    NoisyNeighbour,
    NonfiniteLoss,
    NotValidated,
    OversubscribedCpu,
    ParamsOutOfSync,
    PowerCapped,
    PrecisionMismatch,
    Relocated,
    Remeasured,
    RepeatedSamples,
    RereadFiles,
    Severity,
    SharedGpu,
    SharedHandles,
    SkippedSteps,
    Throttled,
    UnequalNodes,
    UnusedLossScale,
)
from ddpbench.record.record import Record

CheckRule = Callable[[Record], AnyCheck | None]

CHECK_RULES: Mapping[type[Check], CheckRule] = {
    PrecisionMismatch: check_precision,
    UnusedLossScale: check_loss_scale_used,
    NonfiniteLoss: check_loss_is_finite,
    SkippedSteps: check_skipped_steps,
    FrozenParameters: check_parameters_change,
    ParamsOutOfSync: check_params_in_sync,
    Noisy: check_noise,
    Drift: check_drift,
    Relocated: check_relocations,
    MeasurementTooShort: check_length,
    Throttled: check_throttling,
    PowerCapped: check_power_cap,
    Remeasured: check_remeasured_rounds,
    SharedGpu: check_other_processes,
    AllocRetry: check_allocator_retries,
    OversubscribedCpu: check_cpu_demand,
    NoisyNeighbour: check_starved_ranks,
    NoInfiniband: check_infiniband,
    UnequalNodes: check_node_balance,
    RereadFiles: check_reread_files,
    FilesSkipped: check_skipped_files,
    SharedHandles: check_shared_handles,
    RepeatedSamples: check_repeated_samples,
    NotValidated: check_validation,
    ImplausibleMfu: check_mfu,
}
"""The checks of every record, and the rule that decides each."""

FIGURE_CHECKS = (Noisy, Drift, MeasurementTooShort)
"""Checks that concern only how well the rounds support their figure."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)


def run_checks(record: Record) -> list[AnyCheck]:
    """The checks of ``record`` that found something, most severe first. Without a round, none.

    With an error there is no figure, and the checks of how well it is supported are skipped.
    """
    found = [check for rule in CHECK_RULES.values() if record.rounds and (check := rule(record))]
    if any(check.severity == "error" for check in found):
        found = [check for check in found if not isinstance(check, FIGURE_CHECKS)]
    return most_severe_first(found)


def most_severe_first(checks: Iterable[AnyCheck]) -> list[AnyCheck]:
    return sorted(checks, key=lambda check: SEVERITIES.index(check.severity))
