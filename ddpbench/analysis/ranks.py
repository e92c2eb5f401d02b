"""Rank rows: means over all rounds, and a rank's own time, which separates a slow rank from a waiting one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum
from statistics import fmean, median
from typing import TypeVar

from ddpbench.record.environment import RankPlacement
from ddpbench.record.record import Record
from ddpbench.record.trace import COLLECTIVE_PHASES, DATA_PHASES, SCRIPT_PHASE, Health, Trace

COMPUTE_PHASES = ("forward", "backward", "optimizer")

Value = TypeVar("Value")


@dataclass(frozen=True)
class RankRow:
    """One rank over all steps of all its rounds: durations are means, memory and temperature are maxima."""

    rank: int
    host: str
    device_index: int  # the local rank
    step_ms: float  # wall
    phases_ms: Mapping[str, float]  # as in a Trace
    peak_allocated_bytes: int | None  # allocated on the device
    device_total_bytes: int | None  # capacity of the device
    rss_bytes: int | None  # of the rank and its loader workers on the host
    sm_mhz: float | None
    watts: float | None
    celsius: float | None
    throttle_reasons: frozenset[str]
    host_issue_ms: float | None = None  # median time per step that its host still issued its compute phases; None on CPU or if unknown
    thread_cpu_ms: float | None = None  # CPU time per step of the thread that trains; None if unknown

    @property
    def data_wait_ms(self) -> float:
        """Its own wait for data, the starts of epochs included."""
        return fsum(self.phases_ms.get(phase, 0.0) for phase in DATA_PHASES)

    @property
    def compute_ms(self) -> float:
        """Forward, backward and optimizer."""
        return fsum(self.phases_ms[phase] for phase in COMPUTE_PHASES)

    @property
    def collective_wait_ms(self) -> float:
        """Its wait for other ranks: buffer broadcast, and gradient sync that backward does not hide."""
        return fsum(self.phases_ms[phase] for phase in COLLECTIVE_PHASES)

    @property
    def own_ms(self) -> float:
        """Its step without the waits for other ranks."""
        return self.step_ms - self.collective_wait_ms

    @property
    def unexplained_ms(self) -> float:
        """The part of its step that no phase of training covers; in a watched script, that is the phase of the script."""
        return self.step_ms - fsum(ms for phase, ms in self.phases_ms.items() if phase != SCRIPT_PHASE)


def rank_rows(record: Record) -> list[RankRow]:
    """One row per rank in the rounds of ``record``, slowest own time first; empty without rounds."""
    placements = {place.rank: place for place in record.environment.placements}
    return sorted((_row(placements[rank], traces) for rank, traces in record.traces_by_rank.items()), key=lambda row: -row.own_ms)


def own_ms(trace: Trace) -> float:
    """A rank's own time per step in ms, the mean over one round."""
    return (1000 * trace.wall_s - fsum(trace.total_ms(phase) for phase in COLLECTIVE_PHASES)) / trace.steps


def _row(placement: RankPlacement, traces: list[Trace]) -> RankRow:
    steps = sum(trace.steps for trace in traces)
    memory = [trace.memory for trace in traces]
    cpu_s = drop_none(trace.thread_cpu_s for trace in traces)
    health = [trace.health or Health() for trace in traces]
    issue_ms = [ms for trace in traces for ms in trace.host_issue_ms]
    return RankRow(
        rank=placement.rank,
        host=placement.host,
        device_index=placement.local_rank,
        step_ms=1000 * fsum(trace.wall_s for trace in traces) / steps,
        phases_ms={phase: fsum(trace.total_ms(phase) for trace in traces) / steps for phase in traces[0].phases},
        peak_allocated_bytes=max(drop_none(each.allocated_bytes for each in memory), default=None),
        device_total_bytes=max(drop_none(each.device_total_bytes for each in memory), default=placement.device_total_bytes),
        rss_bytes=max(
            (each.host_rss_bytes + (each.workers_rss_bytes or 0) for each in memory if each.host_rss_bytes is not None), default=None
        ),
        sm_mhz=mean_or_none(each.sm_mhz for each in health),
        watts=mean_or_none(each.watts for each in health),
        celsius=max(drop_none(each.celsius for each in health), default=None),
        throttle_reasons=frozenset(reason for each in health for reason in each.throttle_reasons),
        host_issue_ms=median(issue_ms) if issue_ms else None,
        thread_cpu_ms=1000 * fsum(cpu_s) / steps if len(cpu_s) == len(traces) else None,
    )


def drop_none(values: Iterable[Value | None]) -> list[Value]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = drop_none(values)
    return fmean(known) if known else None
