"""Where this rank is, kept in plain attributes by the loop and read by the watchdog's thread.

A mark costs the loop two attribute writes. Every rank passes the same marks in the same order, so the rank with the
lowest count is the one that the others wait for.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from ddpbench.record.trace import PHASES

NEXT_PHASE = (*PHASES[1:], PHASES[0])
"""What begins when a phase has passed: the step after the last phase begins with the first."""

PAUSED = "waiting for its turn"
"""What a rank does that has no part in what the others do. Its marks stand still meanwhile."""


@dataclass(frozen=True)
class Position:
    """One rank's place in the run: marks passed, training steps done, and the name of what it is in."""

    marks_passed: int
    step: int
    phase: str

    def encode(self, heartbeat: int) -> str:
        return f"{heartbeat}|{self.marks_passed}|{self.step}|{self.phase}"

    @property
    def is_paused(self) -> bool:
        """Whether the rank waits on purpose: nobody waits for it."""
        return self.phase == PAUSED

    @classmethod
    def decode(cls, text: str) -> tuple[int, Position]:
        beat, count, step, doing = text.split("|", 3)
        return int(beat), cls(int(count), int(step), doing)


@dataclass(frozen=True)
class ActiveArm:
    """The arm that is on the device."""

    arm_index: int | None  # its place among the records of the job, where it has one
    batch_size: int


class ProgressMarker:
    """The place of this rank. ``patience_s`` is how long one place may last before the run counts as hung."""

    def __init__(self, timeout_s: float) -> None:
        self.marks_passed = 0
        self.step = 0
        self.phase = "starting"
        self.active_arm: ActiveArm | None = None
        self.timeout_s = timeout_s

    def end_phase(self, phase_index: int) -> None:
        """A phase of a step ended; the last one ends the step."""
        self.marks_passed += 1
        self.phase = NEXT_PHASE[phase_index]
        if phase_index == len(PHASES) - 1:
            self.step += 1

    def enter(self, phase: str) -> None:
        """Something outside the loop begins: building the model, gathering."""
        self.marks_passed += 1
        self.phase = phase

    def pause(self) -> None:
        """This rank has nothing to do until others are done, however long that takes."""
        self.phase = PAUSED

    def resync(self, marks_passed: int) -> None:
        """All ranks go on together from ``marks_passed`` marks, however many each has passed: they can be compared again."""
        self.marks_passed, self.phase = marks_passed, "going on"

    @property
    def position(self) -> Position:
        return Position(self.marks_passed, self.step, self.phase)


def main_thread_frame() -> FrameType | None:
    """Where the main thread is in its Python code; None where it runs none."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def main_thread_stack(frames: int = 4) -> str:
    """The innermost frames of the main thread, the innermost first, on one line."""
    frame = main_thread_frame()
    if frame is None:
        return "no Python frame"
    stack = traceback.extract_stack(frame)[-frames:]
    return " <- ".join(f"{entry.name} ({entry.filename.rsplit('/', 1)[-1]}:{entry.lineno})" for entry in reversed(stack))


class Watchdog:
    """A thread beside the loop: it calls ``tick(mark)`` every ``TICK_S``, and ``on_stall(seconds)`` once the mark stood still too long.

    A rank that waits for its turn may stand still; ``on_long_rest()`` is called whenever it has for so long.
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
        still_s = 0.0
        while not self._stop.wait(self.TICK_S):
            mark = self._marker.position
            still_s = still_s + self.TICK_S if mark == last else 0.0
            last = mark
            self._tick(mark)
            if still_s <= self._marker.timeout_s:
                continue
            if not mark.is_paused:
                self._on_stall(still_s)
                return
            self._on_long_pause()
            still_s = 0.0
