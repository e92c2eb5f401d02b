"""Timing of the phases of a step: one timestamp at the end of each phase, on the device's and the host's clock.

CUDA events are recorded on the stream and read after the round, so nothing here blocks the training loop. An event on an
idle stream gets the time at which the host issued it; on a busy stream, the time at which the preceding work ended. The
data phase, from the request to the received batch, is therefore the time in which the *device* had no data.

A step that is replayed as a CUDA graph has events in the graph, which every replay records again. Those of the last replay are read, too:
they divide the time of every replay into phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from time import perf_counter_ns
from typing import Protocol

import torch

from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.trace import PHASES

DATA, HOST_TO_DEVICE, BROADCAST, FORWARD, BACKWARD, SYNC, OPTIMIZER = range(len(PHASES))

COMPUTE_PHASES = (FORWARD, BACKWARD, OPTIMIZER)


@dataclass(frozen=True)
class StepTimings:
    """Times of every step since ``begin``, in milliseconds.

    ``phases_ms`` are contiguous: they sum to the time between the first and the last timestamp. ``host_data_ms`` is the wait for
    the loader on the host's clock. ``host_lead_ms`` is the host run-ahead: the time from when the host had issued a step until
    the device finished it; near 0, the device waits for the host. ``host_issue_ms`` is the part of the compute phases in which
    the host was still issuing them. The last two are empty on a CPU rank, where host and device are one.
    """

    phases_ms: dict[str, list[float]]  # phase -> duration per step
    host_data_ms: list[float]
    host_lead_ms: list[float] = field(default_factory=list)
    host_issue_ms: list[float] = field(default_factory=list)


class StepTimer(Protocol):
    """Phase timer. Call ``begin`` before the first step, ``mark(phase)`` at the end of each phase, ``read`` after the last."""

    def begin(self, steps: int) -> None: ...

    def mark(self, phase: int) -> None: ...

    def read(self) -> StepTimings: ...

    def host_data_ms(self) -> list[float]:
        """Only ``host_data_ms`` of ``read``, also for steps whose phases were not all marked, such as the very first."""


class HostStepTimer:
    """Timer on the host's clock, which is also the device's clock on a CPU rank."""

    def __init__(self, marker: ProgressMarker) -> None:
        self._marker = marker
        self._timestamps: list[int] = []
        self._slot = 0

    def begin(self, steps: int) -> None:
        """Allocate timestamps for ``steps`` steps and take the first: the wait for data begins."""
        self._marker.enter(PHASES[DATA])
        self._timestamps = [0] * (steps * len(PHASES) + 1)
        self._slot = 1
        self._timestamps[0] = perf_counter_ns()

    def mark(self, phase: int) -> None:
        """Mark the end of a phase. Phases come in order, each once per step; the last one ends the step."""
        self._timestamps[self._slot + phase] = perf_counter_ns()
        self._marker.end_phase(phase)
        if phase == OPTIMIZER:
            self._slot += len(PHASES)

    def read(self) -> StepTimings:
        phases_ms = _by_phase([(later - earlier) / 1e6 for earlier, later in pairwise(self._timestamps)])
        return StepTimings(phases_ms, phases_ms["data"])

    def host_data_ms(self) -> list[float]:
        return self.read().host_data_ms

    def timestamps_ms(self) -> list[float]:
        """Milliseconds since ``begin`` at the end of each phase; the first element is ``begin`` itself."""
        return [(stamp - self._timestamps[0]) / 1e6 for stamp in self._timestamps]


class CudaStepTimer:
    """Timer with CUDA events on the compute stream, and host timestamps."""

    def __init__(self, marker: ProgressMarker, device: torch.device) -> None:
        self._host = HostStepTimer(marker)
        self._stream = torch.cuda.current_stream(device)
        self._events: list[torch.cuda.Event] = []
        self._in_graph: dict[int, torch.cuda.Event] = {}  # phase -> event at its end
        self._replays = False
        self._slot = 0
        self._steps = 0

    def begin(self, steps: int) -> None:
        needed = steps * len(PHASES) + 1
        self._events += [torch.cuda.Event(enable_timing=True) for _ in range(needed - len(self._events))]
        self._steps, self._slot, self._replays = steps, 1, OPTIMIZER in self._in_graph
        self._events[0].record(self._stream)
        self._host.begin(steps)

    def mark(self, phase: int) -> None:
        """Mark the end of a phase, or put the mark into the graph that is being captured."""
        if torch.cuda.is_current_stream_capturing():
            if phase not in self._in_graph:  # destroying an event crashes a capture that has recorded it
                self._in_graph[phase] = torch.cuda.Event(enable_timing=True, external=True)
            self._in_graph[phase].record()
            return
        if not (self._replays and HOST_TO_DEVICE < phase < OPTIMIZER):
            self._events[self._slot + phase].record(self._stream)
        if phase == OPTIMIZER:
            self._slot += len(PHASES)
        self._host.mark(phase)

    def read(self) -> StepTimings:
        """The timings; the device must have finished all issued work."""
        phases_ms = _by_phase(self._durations_ms())
        issued_ms = self._host.timestamps_ms()
        return StepTimings(phases_ms, self.host_data_ms(), self._host_lead_ms(issued_ms), _host_issue_ms(phases_ms, issued_ms))

    def _durations_ms(self) -> list[float]:
        """Of every phase of every step, in order."""
        events = self._events[: self._steps * len(PHASES) + 1]
        if not self._replays:
            return [earlier.elapsed_time(later) for earlier, later in pairwise(events)]
        shares = self._shares_of_replay()
        durations = []
        for first in range(0, len(events) - 1, len(PHASES)):
            began, *_, ended = step = events[first : first + len(PHASES) + 1]
            has_data, has_batch = step[1 + DATA], step[1 + HOST_TO_DEVICE]
            replay_ms = has_batch.elapsed_time(ended)
            durations += [began.elapsed_time(has_data), has_data.elapsed_time(has_batch), *(share * replay_ms for share in shares)]
        return durations

    def _shares_of_replay(self) -> list[float]:
        """Fractions of the last replay that its phases took."""
        ends = [self._in_graph[phase] for phase in range(HOST_TO_DEVICE, len(PHASES))]
        return [earlier.elapsed_time(later) / ends[0].elapsed_time(ends[-1]) for earlier, later in pairwise(ends)]

    def host_data_ms(self) -> list[float]:
        return self._host.host_data_ms()

    def _host_lead_ms(self, issued_ms: Sequence[float]) -> list[float]:
        ends = self._events[len(PHASES) : self._steps * len(PHASES) + 1 : len(PHASES)]
        issued = issued_ms[len(PHASES) :: len(PHASES)]
        return [round(self._events[0].elapsed_time(end) - host_ms, 4) for end, host_ms in zip(ends, issued, strict=True)]


def _host_issue_ms(phases_ms: Mapping[str, list[float]], issued_ms: Sequence[float]) -> list[float]:
    steps = zip(*phases_ms.values(), strict=True)
    device_end_ms = accumulate((ms for step in steps for ms in step), initial=0.0)
    return host_issue_ms([*device_end_ms], issued_ms)


def host_issue_ms(device_end_ms: Sequence[float], issued_ms: Sequence[float]) -> list[float]:
    """Time per step in which the device was in forward, backward or optimizer and the host was still issuing that phase, in ms.

    ``device_end_ms`` is when the device ended each phase, ``issued_ms`` when the host had issued it, in ms since the common
    start, which is the first element of both. The result is an upper bound on the device's wait for the host: 0 if the host is
    a whole phase ahead.
    """
    waits = [max(0.0, min(ended, issued) - began) for (began, ended), issued in zip(pairwise(device_end_ms), issued_ms[1:], strict=True)]
    return [round(sum(waits[first + phase] for phase in COMPUTE_PHASES), 4) for first in range(0, len(waits), len(PHASES))]


def make_step_timer(marker: ProgressMarker, device: torch.device) -> StepTimer:
    """The StepTimer for ``device``."""
    return CudaStepTimer(marker, device) if device.type == "cuda" else HostStepTimer(marker)


def _by_phase(durations: list[float]) -> dict[str, list[float]]:
    return {phase: [round(ms, 4) for ms in durations[index :: len(PHASES)]] for index, phase in enumerate(PHASES)}
