"""Checks of the GPUs: clocks, power, other processes, memory, and utilization."""

from __future__ import annotations

from ddpbench.analysis.straggler import SERIOUS_THROTTLE_REASONS
from ddpbench.analysis.summary import compute_mfu
from ddpbench.record.checks import AllocRetry, ImplausibleMfu, PowerCapped, Remeasured, SharedGpu, Throttled
from ddpbench.record.record import Record


def check_throttling(record: Record) -> Throttled | None:
    reasons_by_rank = [
        (trace.rank, SERIOUS_THROTTLE_REASONS.intersection(trace.health.throttle_reasons)) for trace in record.traces if trace.health
    ]
    ranks = sorted({rank for rank, reasons in reasons_by_rank if reasons})
    return Throttled(ranks=ranks, reasons=sorted({reason for _, seen in reasons_by_rank for reason in seen})) if ranks else None


def check_power_cap(record: Record) -> PowerCapped | None:
    ranks = sorted({trace.rank for trace in record.traces if trace.health and "sw-power-cap" in trace.health.throttle_reasons})
    return PowerCapped(ranks=ranks) if ranks else None


def check_remeasured_rounds(record: Record) -> Remeasured | None:
    remeasured = [timed.index for timed in record.rounds if any(trace.retry_reason for trace in timed.traces)]
    reasons = sorted({trace.retry_reason for trace in record.traces if trace.retry_reason})
    return Remeasured(round_indices=remeasured, reasons=reasons) if remeasured else None


def check_other_processes(record: Record) -> SharedGpu | None:
    processes_by_rank = {
        trace.rank: trace.health.other_processes for trace in record.traces if trace.health and trace.health.other_processes
    }
    return SharedGpu(ranks=sorted(processes_by_rank), other_processes=max(processes_by_rank.values())) if processes_by_rank else None


def check_allocator_retries(record: Record) -> AllocRetry | None:
    retries = sum(trace.memory.allocator_retries for trace in record.traces)
    return AllocRetry(retries=retries) if retries else None


def check_mfu(record: Record) -> ImplausibleMfu | None:
    mfu = compute_mfu(record)
    return ImplausibleMfu(mfu=mfu) if mfu is not None and mfu > 1 else None
