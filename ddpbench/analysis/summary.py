"""Summary of a record's rounds: what the report prints and the verdict is based on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from ddpbench.analysis.collective_wait import peer_data_wait_ms
from ddpbench.analysis.ranks import RankRow, drop_none, mean_or_none, rank_rows
from ddpbench.analysis.straggler import Straggler, find_straggler
from ddpbench.record.bottleneck import IdleGpu
from ddpbench.record.record import KernelActivity, ObservedPrecision, Record, Round
from ddpbench.record.trace import COLLECTIVE_PHASES, EPOCH_START_PHASE

BOTTLENECK_FRACTION = 0.10
"""A wait is a bottleneck from this fraction of the step."""


@dataclass(frozen=True)
class Summary:
    """Means over all steps of all rounds, and over ranks. A value is None if it is unknown, or without rounds."""

    rounds: int
    steps: int  # timed, of all rounds
    step_ms: float | None  # wall, of the slowest rank
    phases_ms: Mapping[str, float]  # as in a Trace, and "unexplained": they sum to step_ms; empty without rounds
    collective_wait_ms: float | None  # waits for other ranks: the phases broadcast and sync
    peer_data_wait_ms: float | None  # the part of sync_ms that waits for another rank's data
    data_wait_fraction: float | None  # own data wait and peer_data_wait_ms, as a fraction of the step
    host_lead_ms: float | None  # how far the host was ahead of the device; None on the CPU
    ranks: Sequence[RankRow]  # slowest own time first
    straggler: Straggler | None
    first_loss: float | None  # mean over ranks; None if not finite on one of them
    last_loss: float | None
    peak_allocated_bytes: int | None  # allocated on a device, maximum over ranks
    device_total_bytes: int | None  # of that device
    rss_bytes: int | None  # on the host, a rank with its loader workers, maximum over ranks
    joules_per_sample: float | None
    mfu: float | None  # model FLOP/s over the measured peak of the observed dtype, a fraction

    @property
    def epoch_start_ms(self) -> float:
        """What the starts of epochs take per step of a watched script; 0 for others."""
        return self.phases_ms.get(EPOCH_START_PHASE, 0.0)


def summarize(record: Record) -> Summary:
    """The summary of the rounds of ``record``, whatever its status."""
    rows = rank_rows(record)
    steps = sum(_steps(timed) for timed in record.rounds)
    step_ms = 1000 * fsum(timed.wall_s for timed in record.rounds) / steps if steps else None
    phases_ms = _phases_ms(rows, step_ms)
    late_ms = peer_data_wait_ms(record.rounds)
    fullest = max(rows, key=lambda row: row.peak_allocated_bytes or 0, default=None)
    return Summary(
        rounds=len(record.rounds),
        steps=steps,
        step_ms=step_ms,
        phases_ms=phases_ms,
        collective_wait_ms=fsum(phases_ms[phase] for phase in COLLECTIVE_PHASES) if phases_ms else None,
        peer_data_wait_ms=late_ms,
        data_wait_fraction=(phases_ms["data"] + late_ms) / step_ms if step_ms and late_ms is not None else None,
        host_lead_ms=mean_or_none(lead for trace in record.traces for lead in trace.host_lead_ms),
        ranks=rows,
        straggler=find_straggler(record, rows),
        first_loss=_mean_loss([trace.numerics.first_loss for trace in record.rounds[0].traces]) if record.rounds else None,
        last_loss=_mean_loss([trace.numerics.last_loss for trace in record.rounds[-1].traces]) if record.rounds else None,
        peak_allocated_bytes=fullest.peak_allocated_bytes if fullest else None,
        device_total_bytes=fullest.device_total_bytes if fullest else None,
        rss_bytes=max((row.rss_bytes for row in rows if row.rss_bytes is not None), default=None),
        joules_per_sample=_joules_per_sample(record),
        mfu=compute_mfu(record),
    )


def samples_per_step(record: Record) -> float:
    """Mean samples of a step of one rank: fewer than its batch size if the last batches of epochs are smaller. Needs a round."""
    return sum(timed.samples for timed in record.rounds) / sum(map(_steps, record.rounds)) / record.world_size


def compute_phases_ms(record: Record, summary: Summary) -> tuple[float, float, float]:
    """Milliseconds of forward, backward and optimizer per step.

    Without DDP nothing is communicated: the phase "broadcast" is part of the model's call, and "sync" the end of backward.
    """
    phases = ("forward", "backward", "optimizer", "broadcast", "sync")
    forward, backward, optimizer, broadcast, sync = (summary.phases_ms[phase] for phase in phases)
    return (forward, backward, optimizer) if record.uses_ddp else (forward + broadcast, backward + sync, optimizer)


def idle_gpu(activity: KernelActivity, summary: Summary) -> IdleGpu:
    """The kernel time of a step, and the step without its waits for data, copies and other ranks."""
    waits_ms = fsum(summary.phases_ms[phase] for phase in ("data", "host_to_device", *COLLECTIVE_PHASES))
    return IdleGpu(kernel_ms=activity.kernel_ms, available_ms=activity.step_ms - waits_ms)


def compute_mfu(record: Record) -> float | None:
    """Model FLOP/s per device over the matmul peak measured on it, a fraction; None if either is unknown.

    The model's FLOPs are those of forward and backward, 2 per multiply-add, recomputation not counted (PaLM's definition of MFU, Chowdhery
    et al. 2022, appendix B, with a measured peak in place of the data sheet's).
    """
    if not (record.rounds and record.flops_per_sample and record.peak_throughput and record.observed_precision):
        return None
    peak_tflops = record.peak_throughput.matmul_tflops.get(compute_dtype(record.observed_precision))
    if not peak_tflops:
        return None
    samples_per_s = sum(timed.samples for timed in record.rounds) / fsum(timed.wall_s for timed in record.rounds)
    return record.flops_per_sample * samples_per_s / record.world_size / (peak_tflops * 1e12)


def compute_dtype(observed: ObservedPrecision) -> str:
    """The dtype that convolutions and matrix products ran in, as a key of ``PeakThroughput.matmul_tflops``.

    If TF32 is on for cuDNN or matmul, a float32 run counts as "tf32": the fastest that it was free to use.
    """
    dtype = observed.first_layer_dtype
    return "tf32" if dtype == "float32" and (observed.tf32_cudnn or observed.tf32_matmul) else dtype


def _steps(timed: Round) -> int:
    return max(trace.steps for trace in timed.traces)


def _phases_ms(rows: Sequence[RankRow], step_ms: float | None) -> dict[str, float]:
    if step_ms is None:
        return {}
    phases_ms = {phase: fmean(row.phases_ms[phase] for row in rows) for phase in rows[0].phases_ms}
    return {**phases_ms, "unexplained": step_ms - fsum(phases_ms.values())}


def _mean_loss(losses: Sequence[float | None]) -> float | None:
    finite = drop_none(losses)
    return fmean(finite) if len(finite) == len(losses) else None


def _joules_per_sample(record: Record) -> float | None:
    """Energy of the GPUs per image, None if unknown; ranks that share a GPU share its energy."""
    devices = {place.rank: place.device_id for place in record.environment.placements}
    joules, images = 0.0, 0
    for timed in record.rounds:
        energy_j: dict[str, float] = {}
        for trace in timed.traces:
            if trace.health is None or trace.health.energy_j is None:
                return None
            energy_j[devices[trace.rank]] = trace.health.energy_j
            images += trace.samples
        joules += fsum(energy_j.values())
    return joules / images if images else None
