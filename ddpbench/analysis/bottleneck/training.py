"""Bottlenecks of the training itself: straggler, launches, gradient sync, compute."""

from __future__ import annotations

from math import fsum, sqrt
from statistics import median

from ddpbench.analysis.checks.node import format_demand
from ddpbench.analysis.controls import step_s, step_time_ratio
from ddpbench.analysis.cpu_demand import oversubscribed_node
from ddpbench.analysis.evidence import BOTTLENECK_FRACTION
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.costs import loader_cost
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.pipeline.rates import exposed_allreduce_s
from ddpbench.analysis.ranks import COMPUTE_PHASES
from ddpbench.analysis.straggler import MIN_EXCESS_FRACTION, Straggler
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.text import device_clause
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.record.trace import COLLECTIVE_PHASES
from ddpbench.record.verdict import Verdict

MIN_KERNEL_FRACTION = 0.85
"""A GPU waits for launches if kernels run for less than this fraction of the step without its waits for data, copies and other ranks."""

MIN_HOST_LEAD_FRACTION = 0.10
"""A host that runs ahead of its GPU by less than this fraction of a step hardly keeps up with it."""

MAX_UNEXPLAINED_FRACTION = 0.20

STRAGGLER_PHRASES = {
    "data": "in getting its data",
    "host to device": "in copying to the device",
    "compute": "in computing",
    "clock": "with a lower clock",
    "host": "held up by its host",
}
STRAGGLER_PHRASES_CPU = {"host to device": "in making its batches ready"}
"""On CPU, where nothing is copied."""


def straggler(inputs: AnalysisInput) -> Verdict | None:
    """One rank is slow in every round.

    None if the others wait longer for their own data than for it, or if its loader is about as fast as theirs.
    """
    record, slow, rows = inputs.record, inputs.summary.straggler, inputs.summary.ranks
    if slow is None or not slow.is_costly or slow.lost_ms_per_step <= median(row.data_wait_ms for row in rows if row.rank != slow.rank):
        return None
    if slow.kind == "data" and is_marginal_straggler(inputs, slow.rank):
        return None
    own_ms = next(row.own_ms for row in rows if row.rank == slow.rank)
    others_ms = median(row.own_ms for row in rows if row.rank != slow.rank)
    return Verdict(
        kind="straggler",
        says=(
            f"rank {slow.rank} ({_straggler_location(record, slow)}) is {slow.excess_fraction:.0%} slower than "
            f"the others, {_straggler_phrase(record, slow)}"
        ),
        why=f"its own time is {format_3sig(own_ms)} ms a step, the others' {format_3sig(others_ms)}, in every round; "
        f"it costs {format_3sig(slow.cost_images_per_s)} {record.sample_unit}s/s",
        rank=slow.rank,
        cause="one-rank" if slow.kind == "data" else "",
    )


def too_few_cores(inputs: AnalysisInput) -> Verdict | None:
    """Ranks take turns on the cores: what looks like a wait for other ranks, or like computing, is a wait for a core.

    If training with the loader in the background was measured, it has ruled out the workers: then only compute threads count.
    """
    node = oversubscribed_node(inputs.record)
    if node is None or (inputs.controls.has_background_loader and node.trainer_cores <= node.usable_cores):
        return None
    seen = sync_bound(inputs) or compute_bound(inputs)
    return Verdict(
        kind="inconclusive",
        says=f"too few cores: {format_demand(node)} > {pluralize(node.usable_cores, 'usable core')}",
        why=f"they take turns on the cores and wait for each other; {describe_likely(seen)}",
    )


def launch_bound(inputs: AnalysisInput) -> Verdict | None:
    """By the kernel times of the profiler if there are any, else by the host run-ahead; of compute-only training if measured.

    None on CPU, which has no launches to wait for.
    """
    if inputs.record.environment.device_type != "cuda":
        return None
    seen = inputs.controls.compute_only or inputs.record
    summary, gap = summarize(seen), seen.kernel_activity or inputs.record.kernel_activity
    if gap is not None:
        of = summary if seen.kernel_activity else inputs.summary
        free_ms = gap.step_ms - fsum(of.phases_ms[phase] for phase in ("data", "host_to_device", *COLLECTIVE_PHASES))
        held = gap.kernel_ms < MIN_KERNEL_FRACTION * free_ms
        why = f"kernels run for {format_3sig(gap.kernel_ms)} of the {format_3sig(free_ms)} ms in which the GPU waits for nothing else"
    elif summary.host_lead_ms is not None and summary.step_ms is not None:
        held = summary.host_lead_ms < MIN_HOST_LEAD_FRACTION * summary.step_ms
        why = (
            f"when it has issued a step of {format_3sig(summary.step_ms)} ms the host is "
            f"{format_3sig(summary.host_lead_ms)} ms ahead of the GPU"
        )
    else:
        return None
    if not held:
        return None
    return Verdict(
        kind="launch-bound",
        says="the host cannot issue kernels as fast as the GPU runs them",
        why=why,
    )


def sync_bound(inputs: AnalysisInput) -> Verdict | None:
    """By how much longer a step takes than with independent ranks if that was measured, else by the waits for other ranks."""
    record, around = inputs.record, inputs.controls
    waits_ms = (inputs.summary.sync_ms or 0) - (inputs.summary.peer_data_wait_ms or 0)
    share = f"{waits_ms / inputs.step_ms:.0%} of every step"
    says, why = f"{share} is gradient sync that backward does not hide", f"{format_3sig(waits_ms)} of {format_3sig(inputs.step_ms)} ms"
    device_s, longer = step_s(around.compute_only), step_time_ratio(around.compute_only, around.independent)
    if device_s is not None and longer is not None:
        waits_ms = 1000 * exposed_allreduce_s(device_s, device_s / longer.center)
        says = f"gradient sync makes every step {longer.center - 1:.0%} longer ({longer.low - 1:.0%} to {longer.high - 1:.0%})"
        apart_ms = 1000 * device_s / longer.center
        why = (
            f"{format_3sig(1000 * device_s)} ms together, {format_3sig(apart_ms)} with every rank for itself; "
            f"by the clock it is {share} as asked"
        )
    if waits_ms < BOTTLENECK_FRACTION * inputs.step_ms:
        return None
    gradients = f"for the gradients of {format_3sig(record.num_parameters / 1e6)} million parameters on {record.world_size} ranks"
    return Verdict(kind="sync-bound", says=says, why=f"{why}, {gradients}")


def unexplained(inputs: AnalysisInput) -> Verdict | None:
    rest_ms = inputs.summary.phases_ms["unexplained"]
    if rest_ms < MAX_UNEXPLAINED_FRACTION * inputs.step_ms:
        return None
    return Verdict(
        kind="inconclusive",
        says=f"{rest_ms / inputs.step_ms:.0%} of every step is not explained by its phases",
        why=f"{format_3sig(rest_ms)} of {format_3sig(inputs.step_ms)} ms pass on the wall clock and in no phase",
    )


def compute_bound(inputs: AnalysisInput) -> Verdict:
    phases_ms = inputs.summary.phases_ms
    share = fsum(phases_ms[phase] for phase in COMPUTE_PHASES) / inputs.step_ms
    forward, backward, optimizer = (format_3sig(phases_ms[phase]) for phase in COMPUTE_PHASES)
    return Verdict(
        kind="compute-bound",
        says=f"{device_clause(inputs.record, 'compute')} {share:.0%} of every step: healthy",
        why=f"forward {forward}, backward {backward}, optimizer {optimizer} of {format_3sig(inputs.step_ms)} ms",
    )


def describe_likely(verdict: Verdict) -> str:
    """The most likely bottleneck, for an inconclusive verdict."""
    return verdict.says if verdict.kind == "inconclusive" else f"most like {verdict.kind}: {verdict.says}"


def _straggler_phrase(record: Record, slow: Straggler) -> str:
    return (STRAGGLER_PHRASES if record.environment.device_type == "cuda" else {**STRAGGLER_PHRASES, **STRAGGLER_PHRASES_CPU})[slow.kind]


def _straggler_location(record: Record, slow: Straggler) -> str:
    return f"{slow.host}, GPU {slow.device_index}" if record.environment.device_type == "cuda" else slow.host


MAX_HANDOFF_FRACTION = 0.5


def is_marginal_straggler(inputs: AnalysisInput, rank: int) -> bool:
    """Whether a loader as fast as the other ranks' would close less than half of the gap of ``rank``; False if unknown."""
    times, given = _loader_time_ratio(inputs, rank), pipeline_model(inputs)
    if times is None or (given.handoff_fraction or 0.0) >= MAX_HANDOFF_FRACTION:
        return False
    return times < max(1 + MIN_EXCESS_FRACTION[inputs.record.environment.device_type], sqrt(given.device_rate / given.achieved_rate))


def _loader_time_ratio(inputs: AnalysisInput, rank: int) -> float | None:
    """Time per image in the workers of ``rank`` as a multiple of the other ranks'; by the loader benchmarks if workers do not report it."""
    costs = {each: loader_cost(trace.loader_stats for trace in traces) for each, traces in inputs.record.traces_by_rank.items()}
    seconds = {each: cost.wall_s for each, cost in costs.items() if cost}
    if len(seconds) < len(costs) and inputs.controls.diagnosis:
        seconds = {each.rank: 1 / each.images_per_s for each in inputs.controls.diagnosis.loader_benchmarks if each.images}
    others = [span for each, span in seconds.items() if each != rank]
    return seconds[rank] / median(others) if others and rank in seconds else None
