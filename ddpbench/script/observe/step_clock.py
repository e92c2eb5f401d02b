"""Times the phases of a watched step from marks: each mark ends a phase. A step may have any number of marks, in any order.

As in ``machine/step_timer.py``, a GPU is timed by CUDA events, which are read when the device has passed them: nothing here waits for it.
Steps are contiguous: the last mark of a step is also the first of the next.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from time import perf_counter_ns, thread_time
from typing import Any, Generic, TypeVar

import torch
from typing_extensions import NamedTuple

from ddpbench.machine.step_timer import DATA, OPTIMIZER
from ddpbench.record.trace import PHASES

SCRIPT = OPTIMIZER + 1
EPOCH_START = SCRIPT + 1
NUM_PHASES = len(PHASES) + 2
PAUSE = NUM_PHASES
"""A mark that ends time which is not part of the step, such as a checkpoint."""

MAX_READ_PER_STEP = 2
"""Finished steps that are read at the end of one step on a GPU, so that a backlog causes no long pause."""

Label = TypeVar("Label")


class StepTimes(NamedTuple, Generic[Label]):
    """Times of one step in ms. ``label`` is what the step was closed with."""

    label: Label
    phases_ms: list[float]  # by phase, SCRIPT and EPOCH_START last; on the device's clock
    host_data_ms: float
    thread_cpu_ms: float  # CPU time of the thread


Mark = tuple[int, int, Any]
"""The end of a phase: its number, the host's clock in ns and, on a GPU, a torch.cuda.Event on the stream that trains.

A plain tuple: a step takes about ten, and each costs time of the script.
"""


class StepClock(Generic[Label]):
    """Collects the marks of the open step, and the steps whose events the device has not passed yet."""

    def __init__(self) -> None:
        self._marks: list[Mark] | None = None  # None if no step is open
        self._pending: deque[tuple[Label, list[Mark], float]] = deque()
        self._free_events: list[Any] = []
        self._stream: Any = None  # of a GPU
        self._cpu_s = 0.0
        self._has_pause = False  # in the open step
        self.is_coarse = False  # marks record no event: the times of the step are not kept

    def use_device(self, device: torch.device) -> None:
        """Time on ``device``, on its current stream. On a GPU the open step, which began on the host's clock alone, is dropped."""
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)
            self._marks = None

    @property
    def is_open(self) -> bool:
        return self._marks is not None

    @property
    def is_timing(self) -> bool:
        """Whether the phases of the open step are timed."""
        return self._marks is not None and not self.is_coarse

    @property
    def num_marks(self) -> int:
        """Marks in the open step, its start not counted."""
        marks = self._marks  # another thread may call this
        return len(marks) - 1 if marks else 0

    @property
    def last_phase(self) -> int | None:
        """The phase of the last mark; None if no step is open."""
        return self._marks[-1][0] if self._marks else None

    @property
    def last_s(self) -> float:
        """When the last mark was made, on the clock of time.perf_counter; a step must be open."""
        assert self._marks is not None, "no step is open"
        return self._marks[-1][1] / 1e9

    @property
    def open_s(self) -> float:
        """Seconds since the last mark; 0 if no step is open."""
        return perf_counter_ns() / 1e9 - self.last_s if self._marks else 0.0

    def open(self) -> None:
        """Begin a step now, in place of an open one."""
        self._marks, self._cpu_s = [(SCRIPT, perf_counter_ns(), self._event())], thread_time()

    def mark(self, phase: int) -> None:
        """Mark the end of ``phase``, if a step is open."""
        if self._marks is not None:
            self._marks.append((phase, perf_counter_ns(), None if self._stream is None else self._event()))

    def mark_pause(self, cpu_s: float = 0.0) -> None:
        """Mark the end of time that is no part of the open step, in which this thread has used ``cpu_s`` seconds of CPU time."""
        self.mark(PAUSE)
        self._has_pause = True
        self._cpu_s += cpu_s

    def truncate(self, num_marks: int) -> None:
        """Drop all but the first ``num_marks`` marks of the open step."""
        if self._marks is not None:
            del self._marks[num_marks + 1 :]

    def close(self, label: Label | None, reopen: bool) -> float:
        """End the open step at its last mark, and begin the next one there if ``reopen``; returns the host's seconds of the step.

        Without a ``label`` its times are not kept.
        """
        marks, now_s = self._marks, 0.0 if label is None and self.is_coarse else thread_time()
        assert marks is not None, "no step is open"
        if label is not None:
            self._pending.append((label, marks, now_s - self._cpu_s))
        self._marks, self._cpu_s = ([(SCRIPT, *marks[-1][1:])] if reopen else None), now_s
        paused_ns = sum(later[1] - earlier[1] for earlier, later in pairwise(marks) if later[0] == PAUSE) if self._has_pause else 0
        self._has_pause = False
        return (marks[-1][1] - marks[0][1] - paused_ns) / 1e9

    def drop(self) -> None:
        """Drop the open step."""
        self._marks = None

    def finished(self) -> list[StepTimes[Label]]:
        """The next closed steps that the device has finished; on a GPU at most ``MAX_READ_PER_STEP``."""
        found: list[StepTimes[Label]] = []
        while self._pending and len(found) < MAX_READ_PER_STEP:
            last = self._pending[0][1][-1][2]
            if last is not None and not last.query():
                break
            found.append(self._read(*self._pending.popleft()))
        return found

    def finish(self) -> list[StepTimes[Label]]:
        """All closed steps, after waiting for the device. For the end of the script."""
        if self._pending and (last := self._pending[-1][1][-1][2]) is not None:
            last.synchronize()
        pending, self._pending = self._pending, deque()
        return [self._read(*step) for step in pending]

    def _event(self) -> Any:
        """An event on the training stream; None on the CPU, for coarse marks, and while a CUDA graph is captured: it would be captured."""
        if self._stream is None or self.is_coarse or torch.cuda.is_current_stream_capturing():
            return None
        event = self._free_events.pop() if self._free_events else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _read(self, label: Label, marks: list[Mark], cpu_s: float) -> StepTimes[Label]:
        phases_ms, host_data_ms = [0.0] * (NUM_PHASES + 1), 0.0
        if self._stream is not None:
            marks = [mark for mark in marks if mark[2] is not None]
        _, earlier_ns, earlier_event = marks[0]
        for phase, ns, event in marks[1:]:
            host_ms = (ns - earlier_ns) / 1e6
            phases_ms[phase] += host_ms if event is None else earlier_event.elapsed_time(event)
            if phase == DATA:
                host_data_ms += host_ms
            earlier_ns, earlier_event = ns, event
        self._free_events += [event for _, _, event in marks[:-1] if event is not None]  # the last one begins the next step
        return StepTimes(label, phases_ms[:NUM_PHASES], host_data_ms, 1e3 * cpu_s)
