"""Bottlenecks of the training itself: straggler, launches, gradient sync, compute."""

from __future__ import annotations

from math import fsum, sqrt
from statistics import fmean, median

from ddpbench.analysis.collective_wait import exposed_comm_ms
from ddpbench.analysis.controls import step_s, step_time_ratio
from ddpbench.analysis.cpu_demand import oversubscribed_node
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.costs import loader_cost
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.pipeline.rates import sync_cost_s
from ddpbench.analysis.stats import t_interval
from ddpbench.analysis.straggler import MIN_EXCESS_FRACTION, unequal_batches
from ddpbench.analysis.summary import BOTTLENECK_FRACTION, compute_phases_ms, idle_gpu, summarize
from ddpbench.record.bottleneck import (
    CollectiveWaits,
    HiddenSync,
    OversubscribedRanks,
    PhaseShares,
    ScriptTime,
    ShortHostLead,
    SlowRank,
    SyncSlowdown,
    UnequalBatches,
    UnexplainedTime,
)
from ddpbench.record.record import Round
from ddpbench.record.trace import COLLECTIVE_PHASES, SCRIPT_PHASE
from ddpbench.record.verdict import Verdict

MIN_KERNEL_FRACTION = 0.85
"""A GPU waits for launches if kernels run for less than this fraction of the step without its waits for data, copies and other ranks."""

MIN_HOST_LEAD_FRACTION = 0.10
"""A host that runs ahead of its GPU by less than this fraction of a step hardly keeps up with it."""

MAX_UNEXPLAINED_FRACTION = 0.20


def straggler(inputs: AnalysisInput) -> Verdict | None:
    """One rank is slow in every round.

    None if the others wait longer for their own data than for it, or if its loader is about as fast as theirs. Nor in a sync-bound run in
    which it waits longer in collectives itself: that is communication, since it comes last.
    """
    slow, rows = inputs.summary.straggler, inputs.summary.ranks
    if slow is None or not slow.is_costly:
        return None
    own_wait_ms = next(row.collective_wait_ms for row in rows if row.rank == slow.rank)
    if slow.lost_ms_per_step <= median(row.data_wait_ms for row in rows if row.rank != slow.rank):
        return None
    if slow.lost_ms_per_step <= own_wait_ms and sync_bound(inputs) is not None:
        return None
    if slow.slow_in == "data" and is_marginal_straggler(inputs, slow.rank):
        return None
    evidence = SlowRank(
        rank=slow.rank,
        slow_in=slow.slow_in,
        excess_fraction=slow.excess_fraction,
        own_ms=next(row.own_ms for row in rows if row.rank == slow.rank),
        others_own_ms=median(row.own_ms for row in rows if row.rank != slow.rank),
        cost_samples_per_s=slow.cost_samples_per_s,
        largest_over_mean=unequal_batches(inputs.record.rounds, slow.rank) if slow.slow_in == "compute" else None,
    )
    return Verdict(kind="straggler", evidence=evidence, rank=slow.rank, cause="one-rank" if slow.slow_in == "data" else None)


def too_few_cores(inputs: AnalysisInput) -> Verdict | None:
    """Ranks take turns on the cores: what looks like a wait for other ranks, or like computing, is a wait for a core.

    If training with the loader in the background was measured, it has ruled out the workers: then only compute threads count.
    """
    node = oversubscribed_node(inputs.record)
    if node is None or (inputs.controls.has_background_loader and node.trainer_cores <= node.usable_cores):
        return None
    sync_evidence = _sync_evidence(inputs)
    evidence = OversubscribedRanks(
        ranks=node.ranks,
        workers=node.workers,
        threads_per_rank=node.threads_per_rank,
        usable_cores=node.usable_cores,
        likely_kind="sync-bound" if sync_evidence else "compute-bound",
        likely=sync_evidence or _phase_shares(inputs),
    )
    return Verdict(kind="inconclusive", evidence=evidence)


def load_imbalance(inputs: AnalysisInput) -> Verdict | None:
    """Batches differ in size between the ranks, and what they wait for each other in collectives is no communication."""
    rounds = inputs.record.rounds
    ratio = unequal_batches(rounds)
    waits_ms = (inputs.summary.collective_wait_ms or 0.0) - (inputs.summary.peer_data_wait_ms or 0.0) - exposed_comm_ms(rounds)
    if ratio is None or waits_ms < BOTTLENECK_FRACTION * inputs.step_ms:
        return None
    evidence = UnequalBatches(wait_ms=waits_ms, step_ms=inputs.step_ms, largest_over_mean=ratio)
    return Verdict(kind="load-imbalance", evidence=evidence)


def launch_bound(inputs: AnalysisInput) -> Verdict | None:
    """By the kernel times of the profiler if there are any, else by the host run-ahead; of compute-only training if measured.

    None on CPU, which has no launches to wait for.
    """
    if inputs.record.environment.device_type != "cuda":
        return None
    measured = inputs.controls.compute_only or inputs.record
    summary, activity = summarize(measured), measured.kernel_activity or inputs.record.kernel_activity
    if activity is not None:
        idle = idle_gpu(activity, summary if measured.kernel_activity else inputs.summary)
        return Verdict(kind="launch-bound", evidence=idle) if idle.kernel_ms < MIN_KERNEL_FRACTION * idle.available_ms else None
    lead_ms, step_ms = summary.host_lead_ms, summary.step_ms
    if lead_ms is None or step_ms is None or lead_ms >= MIN_HOST_LEAD_FRACTION * step_ms:
        return None
    return Verdict(kind="launch-bound", evidence=ShortHostLead(host_lead_ms=lead_ms, step_ms=step_ms))


def sync_bound(inputs: AnalysisInput) -> Verdict | None:
    """By how much longer a step takes than with independent ranks if that was measured, else by the waits for other ranks."""
    found = _sync_evidence(inputs)
    return Verdict(kind="sync-bound", evidence=found) if found else None


def _sync_evidence(inputs: AnalysisInput) -> CollectiveWaits | SyncSlowdown | None:
    controls, threshold_ms = inputs.controls, BOTTLENECK_FRACTION * inputs.step_ms
    waits_ms = (inputs.summary.collective_wait_ms or 0) - (inputs.summary.peer_data_wait_ms or 0)
    device_s, slowdown = step_s(controls.compute_only), step_time_ratio(controls.compute_only, controls.independent)
    if device_s is None or slowdown is None:
        return CollectiveWaits(wait_ms=waits_ms, step_ms=inputs.step_ms) if waits_ms >= threshold_ms else None
    if 1000 * sync_cost_s(device_s, device_s / slowdown.center) < threshold_ms:
        return None
    return SyncSlowdown(
        slowdown_fraction=slowdown.center - 1,
        slowdown_low=slowdown.low - 1,
        slowdown_high=slowdown.high - 1,
        synced_ms=1000 * device_s,
        independent_ms=1000 * device_s / slowdown.center,
        wait_fraction=waits_ms / inputs.step_ms,
    )


def unexplained(inputs: AnalysisInput) -> Verdict | None:
    """Much of a step belongs to no phase of training: a watched script's own work, or something that no timer sees."""
    phases_ms, threshold_ms = inputs.summary.phases_ms, MAX_UNEXPLAINED_FRACTION * inputs.step_ms
    unexplained_ms, script_ms = phases_ms["unexplained"], phases_ms.get(SCRIPT_PHASE, 0.0)
    if script_ms >= threshold_ms:
        return Verdict(kind="inconclusive", evidence=ScriptTime(script_ms=script_ms, step_ms=inputs.step_ms))
    if unexplained_ms < threshold_ms:
        return None
    return Verdict(kind="inconclusive", evidence=UnexplainedTime(unexplained_ms=unexplained_ms, step_ms=inputs.step_ms))


MIN_ROUNDS_WITH_WAITS = 3
"""Rounds whose last steps say how long ranks wait for each other."""


def hidden_sync(inputs: AnalysisInput) -> Verdict | None:
    """Ranks that replay CUDA graphs show their waits for each other in the last step of a round only, and may wait longer in others.

    None if they cannot have waited long, by the last step of each round and how much longer the others took, and if independent ranks
    were measured, which show all waits.
    """
    record = inputs.record
    replays = record.config.cuda_graph and record.environment.device_type == "cuda"
    if not replays or record.config.engine == "none" or record.world_size == 1 or inputs.controls.independent is not None:
        return None
    if len(record.rounds) >= MIN_ROUNDS_WITH_WAITS and t_interval(list(map(_most_waits, record.rounds))).high < BOTTLENECK_FRACTION:
        return None
    backward_ms = inputs.summary.phases_ms["backward"] + inputs.summary.phases_ms["sync"]
    return Verdict(kind="inconclusive", evidence=HiddenSync(backward_ms=backward_ms, step_ms=inputs.step_ms))


def _most_waits(timed: Round) -> float:
    """The longest that a rank can have waited in a round of replayed graphs, as a fraction of a step.

    That is its wait in the last step, and the time by which an average step was longer than the last.
    """
    most = 0.0
    for trace in timed.traces:
        steps_ms = [fsum(phases) for phases in zip(*trace.phases_ms.values(), strict=True)]
        waits_ms = fsum(trace.phases_ms[phase][-1] for phase in COLLECTIVE_PHASES)
        most = max(most, (waits_ms + max(0.0, fmean(steps_ms) - steps_ms[-1])) / fmean(steps_ms))
    return most


def compute_bound(inputs: AnalysisInput) -> Verdict:
    return Verdict(kind="compute-bound", evidence=_phase_shares(inputs))


def _phase_shares(inputs: AnalysisInput) -> PhaseShares:
    forward_ms, backward_ms, optimizer_ms = compute_phases_ms(inputs.record, inputs.summary)
    return PhaseShares(forward_ms=forward_ms, backward_ms=backward_ms, optimizer_ms=optimizer_ms, step_ms=inputs.step_ms)


MAX_HANDOFF_FRACTION = 0.5


def is_marginal_straggler(inputs: AnalysisInput, rank: int) -> bool:
    """Whether a loader as fast as the other ranks' would close less than half of the gap of ``rank``; False if unknown."""
    time_ratio, pipeline = _loader_time_ratio(inputs, rank), pipeline_model(inputs)
    if time_ratio is None or (pipeline.handoff_fraction or 0.0) >= MAX_HANDOFF_FRACTION:
        return False
    return time_ratio < max(
        1 + MIN_EXCESS_FRACTION[inputs.record.environment.device_type], sqrt(pipeline.device_rate / pipeline.achieved_rate)
    )


def _loader_time_ratio(inputs: AnalysisInput, rank: int) -> float | None:
    """Time per image in the workers of ``rank`` as a multiple of the other ranks'; by the loader benchmarks if workers do not report it."""
    costs = {each: loader_cost(trace.loader_stats for trace in traces) for each, traces in inputs.record.traces_by_rank.items()}
    seconds_per_image = {each: cost.wall_s for each, cost in costs.items() if cost}
    if len(seconds_per_image) < len(costs) and inputs.controls.diagnosis:
        seconds_per_image = {each.rank: 1 / each.samples_per_s for each in inputs.controls.diagnosis.loader_benchmarks if each.samples}
    others = [span for each, span in seconds_per_image.items() if each != rank]
    return seconds_per_image[rank] / median(others) if others and rank in seconds_per_image else None
