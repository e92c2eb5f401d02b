"""How far a rank is in its script, since when it has stood still, and what its steps have cost so far."""

from __future__ import annotations

import time

import msgspec

from ddpbench.machine.step_timer import BROADCAST, DATA, SYNC
from ddpbench.record.ranges import Count, Milliseconds, Seconds
from ddpbench.record.script import OutsideKind
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.rows import FIRST_PHASE, NUMBER, SAMPLES
from ddpbench.script.ranks.flight_recorder import pending_collective
from ddpbench.script.ranks.stack import user_line

DESCRIBE_AFTER_S = 60.0
"""Seconds without progress after which a rank adds the line where it stands."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps of a rank, or over those of an interval."""

    steps: Count = 0
    samples: Count = 0
    step_ms: Milliseconds = 0.0
    data_ms: Milliseconds = 0.0
    own_ms: Milliseconds = 0.0  # without the waits for other ranks

    def since(self, earlier: Totals) -> Totals:
        """The sums over the steps after ``earlier``."""
        return Totals(
            steps=self.steps - earlier.steps,
            samples=self.samples - earlier.samples,
            step_ms=self.step_ms - earlier.step_ms,
            data_ms=self.data_ms - earlier.data_ms,
            own_ms=self.own_ms - earlier.own_ms,
        )


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank is."""

    steps: Count = 0  # that it has finished
    marks: Count = 0  # that it has passed in the open step
    waits_for_data: bool = False
    outside: OutsideKind | None = None  # what it does between two steps
    idle_s: Seconds = 0.0  # since its last mark or batch
    is_silent: bool = False  # it sends nothing any more
    line: str = ""  # of the script, in which it stands; empty if it has moved lately
    collective: str = ""  # that it has not finished; empty if it has moved lately, or if it is unknown
    totals: Totals = Totals()

    @property
    def position(self) -> tuple[int, int]:
        """Ranks that train together pass the same positions: others wait for the rank with the smallest."""
        return self.steps, self.marks


class ProgressReader:
    """Reads the progress of this rank's script, in another thread than the script's. ``hang_timeout_s`` is None if it has none."""

    def __init__(self, observer: Observer, hang_timeout_s: float | None, shows_code: bool = True) -> None:
        self._observer, self._shows_code = observer, shows_code
        self._describe_after_s = min(DESCRIBE_AFTER_S, (hang_timeout_s or DESCRIBE_AFTER_S) / 2)
        self._last_seen, self._moved_s = (-1, -1), time.monotonic()

    def read(self) -> RankProgress:
        """The progress now. ``idle_s`` counts from the first call that has seen it."""
        observer, now_s = self._observer, time.monotonic()
        marks, sums = observer.clock.num_marks, observer.steps.sums
        if (observer.moves, marks) != self._last_seen or observer.problem:  # an observer that has failed sees no progress
            self._last_seen, self._moved_s = (observer.moves, marks), now_s
        idle_s = now_s - self._moved_s
        stands = idle_s >= self._describe_after_s
        step_ms = sum(sums[FIRST_PHASE:])
        return RankProgress(
            steps=observer.num_batches,
            marks=marks,
            waits_for_data=observer.waits_for_data,
            outside=observer.outside_kind,
            idle_s=idle_s,
            line=user_line(self._shows_code, observer.thread) if stands else "",
            collective=pending_collective() if stands else "",
            totals=Totals(
                steps=int(sums[NUMBER]),
                samples=int(sums[SAMPLES]),
                step_ms=step_ms,
                data_ms=sums[FIRST_PHASE + DATA],
                own_ms=step_ms - sums[FIRST_PHASE + SYNC] - sums[FIRST_PHASE + BROADCAST],
            ),
        )
