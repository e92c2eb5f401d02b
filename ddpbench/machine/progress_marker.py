"""The position of this rank in the run, written by the training loop and read by the watchdog thread.

A mark costs the loop two attribute writes. Every rank passes the same marks in the same order, so the rank with the
lowest count is the one that the others wait for.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ddpbench.record.trace import PHASES

NEXT_PHASE = (*PHASES[1:], PHASES[0])
"""The phase that follows each phase; after the last comes the first phase of the next step."""

PAUSED = "waiting for another arm"
"""Phase of a rank that does not participate in the current arm. Its mark count does not change meanwhile."""


@dataclass(frozen=True)
class Position:
    """Position of one rank in the run: marks passed, training steps done, and current phase."""

    marks_passed: int
    step: int
    phase: str

    def encode(self, heartbeat: int) -> str:
        return f"{heartbeat}|{self.marks_passed}|{self.step}|{self.phase}"

    @property
    def is_paused(self) -> bool:
        """Whether the rank is paused on purpose, so that no other rank waits for it."""
        return self.phase == PAUSED

    @classmethod
    def decode(cls, text: str) -> tuple[int, Position]:
        heartbeat, count, step, phase = text.split("|", 3)
        return int(heartbeat), cls(int(count), int(step), phase)


@dataclass(frozen=True)
class ActiveArm:
    """The arm that is currently on the device."""

    arm_index: int | None  # index of its record in the job; None without a record
    batch_size: int


class ProgressMarker:
    """Position of this rank. A run hangs if the position does not change for ``timeout_s`` seconds."""

    def __init__(self, timeout_s: float) -> None:
        self.marks_passed = 0
        self.step = 0
        self.phase = "starting"
        self.active_arm: ActiveArm | None = None
        self.timeout_s = timeout_s

    def end_phase(self, phase_index: int) -> None:
        """Mark the end of a phase; the last phase ends the step."""
        self.marks_passed += 1
        self.phase = NEXT_PHASE[phase_index]
        if phase_index == len(PHASES) - 1:
            self.step += 1

    def enter(self, phase: str) -> None:
        """Mark the start of a phase outside the training loop, such as building the model or gathering."""
        self.marks_passed += 1
        self.phase = phase

    @contextmanager
    def allow(self, seconds: float) -> Iterator[None]:
        """Another timeout for a while."""
        usual_s, self.timeout_s = self.timeout_s, seconds
        try:
            yield
        finally:
            self.marks_passed += 1  # before the usual timeout applies again
            self.timeout_s = usual_s

    def pause(self) -> None:
        """Mark this rank as paused until other ranks are done. A pause has no timeout."""
        self.phase = PAUSED

    def resync(self, marks_passed: int) -> None:
        """Set the mark count to ``marks_passed``, the same on all ranks, so that their positions are comparable again."""
        self.marks_passed, self.phase = marks_passed, "resuming"

    @property
    def position(self) -> Position:
        return Position(self.marks_passed, self.step, self.phase)


def main_thread_frame() -> FrameType | None:
    """The main thread's current Python frame; None if it runs no Python code."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def main_thread_stack(frames: int = 4) -> str:
    """The main thread's innermost ``frames`` stack frames, innermost first, on one line."""
    frame = main_thread_frame()
    if frame is None:
        return "no Python frame"
    stack = traceback.extract_stack(frame)[-frames:]
    return " <- ".join(f"{entry.name} ({entry.filename.rsplit('/', 1)[-1]}:{entry.lineno})" for entry in reversed(stack))


class Watchdog:
    """Thread that calls ``tick(position)`` every ``TICK_S`` seconds, and detects a position that no longer changes.

    After ``marker.timeout_s`` without change it calls ``on_stall(seconds)`` once and ends. If the rank is paused, it calls
    ``on_long_pause()`` instead, once per timeout.
    """

    TICK_S = 0.25

    def __init__(
        self, marker: ProgressMarker, tick: Callable[[Position], None], on_stall: Callable[[float], None], on_long_pause: Callable[[], None]
    ) -> None:
        self._marker, self._tick, self._on_stall, self._on_long_pause = marker, tick, on_stall, on_long_pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpbench-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        last: Position | None = None
        stalled_s = 0.0
        while not self._stop.wait(self.TICK_S):
            position = self._marker.position
            stalled_s = stalled_s + self.TICK_S if position == last else 0.0
            last = position
            self._tick(position)
            if stalled_s <= self._marker.timeout_s:
                continue
            if not position.is_paused:
                self._on_stall(stalled_s)
                return
            self._on_long_pause()
            stalled_s = 0.0
