"""Limits of the training itself: its slowest rank, its launches, its gradient sync, its computing."""

from __future__ import annotations

from math import fsum
from statistics import median

from ddpbench.analysis.checks.node import wanted_of
from ddpbench.analysis.controls import step_s, times_as_long
from ddpbench.analysis.cpu_demand import crowded
from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.pipeline.marginal_straggler import only_the_last
from ddpbench.analysis.pipeline.rates import exposed_sync
from ddpbench.analysis.ranks import COMPUTE
from ddpbench.analysis.straggler import StragglerNote
from ddpbench.analysis.summary import summarise
from ddpbench.analysis.text import who
from ddpbench.record.findings import Verdict
from ddpbench.record.record import Record
from ddpbench.record.text import count, trimmed
from ddpbench.record.trace import WAITS_FOR_OTHERS

BUSY = 0.85
"""Below this fraction in kernels, of the step less its waits for data, copies and other ranks, a GPU waits for launches."""

HARDLY_AHEAD = 0.10
"""A host less than this fraction of a step ahead of its GPU hardly keeps up with it."""

MOST_UNEXPLAINED = 0.20

SLOW_IN = {
    "data": "in getting its data",
    "host to device": "in copying to the device",
    "compute": "in computing",
    "clock": "with a lower clock",
    "host": "held up by its host",
}
ON_PROCESSORS = {"host to device": "in making its batches ready"}
"""Where nothing is copied."""


def straggler(case: Case) -> Verdict | None:
    """One rank, every round; unless the others wait longer for data of their own than for it, or load no faster than it does."""
    record, slow, rows = case.record, case.summary.slow, case.summary.ranks
    if slow is None or not slow.costs or slow.lost_ms <= median(row.data_ms for row in rows if row.rank != slow.rank):
        return None
    if slow.kind == "data" and only_the_last(case, slow.rank):
        return None
    own_ms = next(row.own_ms for row in rows if row.rank == slow.rank)
    others_ms = median(row.own_ms for row in rows if row.rank != slow.rank)
    return Verdict(
        kind="straggler",
        says=f"rank {slow.rank} ({_place(record, slow)}) is {slow.excess:.0%} slower than the others, {_slow_in(record, slow)}",
        why=f"its own time is {trimmed(own_ms)} ms a step, the others' {trimmed(others_ms)}, in every round; "
        f"it costs {trimmed(slow.cost_images_per_s)} {record.item}s/s",
        rank=slow.rank,
        cause="one-rank" if slow.kind == "data" else "",
    )


def too_few_cores(case: Case) -> Verdict | None:
    """Ranks that take turns on the cores: what looks like a wait for other ranks, or like computing, is one for a core.

    Where training was measured beside the loader and without it, its workers are known not to be what is too many.
    """
    node = crowded(case.record)
    if node is None or (case.around.loads_beside and node.trainers <= node.usable):
        return None
    seen = sync_bound(case) or compute_bound(case)
    return Verdict(
        kind="inconclusive",
        says=f"too few cores: {wanted_of(node)} > {count(node.usable, 'usable core')}",
        why=f"they take turns on the cores and wait for each other; {looks_like(seen)}",
    )


def launch_bound(case: Case) -> Verdict | None:
    """By the profiler's kernels where it saw them, else by the host's lead; of the training without a loader where there was one.

    A CPU has no launches to wait for.
    """
    if case.record.environment.device_type != "cuda":
        return None
    seen = case.around.device or case.record
    summary, gap = summarise(seen), seen.launch_gap or case.record.launch_gap
    if gap is not None:
        of = summary if seen.launch_gap else case.summary
        free_ms = gap.step_ms - fsum(of.phases_ms[phase] for phase in ("data", "host_to_device", *WAITS_FOR_OTHERS))
        held = gap.kernel_ms < BUSY * free_ms
        why = f"kernels run for {trimmed(gap.kernel_ms)} of the {trimmed(free_ms)} ms in which the GPU waits for nothing else"
    elif summary.lead_ms is not None and summary.step_ms is not None:
        held = summary.lead_ms < HARDLY_AHEAD * summary.step_ms
        why = f"when it has issued a step of {trimmed(summary.step_ms)} ms the host is {trimmed(summary.lead_ms)} ms ahead of the GPU"
    else:
        return None
    if not held:
        return None
    return Verdict(
        kind="launch-bound",
        says="the host cannot issue kernels as fast as the GPU runs them",
        why=why,
    )


def sync_bound(case: Case) -> Verdict | None:
    """By how much longer a step takes than with every rank for itself where that was measured, else by the waits for other ranks."""
    record, around = case.record, case.around
    waits_ms = (case.summary.sync_ms or 0) - (case.summary.late_data_ms or 0)
    share = f"{waits_ms / case.step_ms:.0%} of every step"
    says, why = f"{share} is gradient sync that backward does not hide", f"{trimmed(waits_ms)} of {trimmed(case.step_ms)} ms"
    device_s, longer = step_s(around.device), times_as_long(around.device, around.no_sync)
    if device_s is not None and longer is not None:
        waits_ms = 1000 * exposed_sync(device_s, device_s / longer.center)
        says = f"gradient sync makes every step {longer.center - 1:.0%} longer ({longer.low - 1:.0%} to {longer.high - 1:.0%})"
        apart_ms = 1000 * device_s / longer.center
        why = f"{trimmed(1000 * device_s)} ms together, {trimmed(apart_ms)} with every rank for itself; by the clock it is {share} as asked"
    if waits_ms < BINDING * case.step_ms:
        return None
    gradients = f"for the gradients of {trimmed(record.parameters / 1e6)} million parameters on {record.world_size} ranks"
    return Verdict(kind="sync-bound", says=says, why=f"{why}, {gradients}")


def unexplained(case: Case) -> Verdict | None:
    rest_ms = case.summary.phases_ms["unexplained"]
    if rest_ms < MOST_UNEXPLAINED * case.step_ms:
        return None
    return Verdict(
        kind="inconclusive",
        says=f"{rest_ms / case.step_ms:.0%} of every step is not explained by its phases",
        why=f"{trimmed(rest_ms)} of {trimmed(case.step_ms)} ms pass on the wall clock and in no phase",
    )


def compute_bound(case: Case) -> Verdict:
    phases_ms = case.summary.phases_ms
    share = fsum(phases_ms[phase] for phase in COMPUTE) / case.step_ms
    forward, backward, optimizer = (trimmed(phases_ms[phase]) for phase in COMPUTE)
    return Verdict(
        kind="compute-bound",
        says=f"{who(case.record, 'compute')} {share:.0%} of every step: healthy",
        why=f"forward {forward}, backward {backward}, optimizer {optimizer} of {trimmed(case.step_ms)} ms",
    )


def looks_like(found: Verdict) -> str:
    """What is most likely where nothing is certain."""
    return found.says if found.kind == "inconclusive" else f"most like {found.kind}: {found.says}"


def _slow_in(record: Record, slow: StragglerNote) -> str:
    return (SLOW_IN if record.environment.device_type == "cuda" else {**SLOW_IN, **ON_PROCESSORS})[slow.kind]


def _place(record: Record, slow: StragglerNote) -> str:
    return f"{slow.host}, GPU {slow.device_index}" if record.environment.device_type == "cuda" else slow.host
