"""The steps of a watched training: opened, closed, and kept as rows of numbers. What a step is, the observer decides."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ddpbench.script.observe.rows import ROW_LENGTH, add_row, is_kept, make_row
from ddpbench.script.observe.step_clock import StepClock, StepTimes


class StepLabel(NamedTuple):
    """What a row has besides the times of its step."""

    number: int  # from 0
    stretch: int  # steps of one stretch follow each other without a pause
    samples: int
    updates: int


class StepLog:
    """All steps of one rank. With ``keeps_all`` every one has a row; with ``times_all`` every one is part of ``sums``."""

    def __init__(self, keeps_all: bool, times_all: bool = False) -> None:
        self.clock: StepClock[StepLabel] = StepClock()
        self.number = 0  # of the open step, or of the next one
        self.stretch = 0
        self.samples = self.updates = 0  # of the open step
        self._updates_before = 0  # of the step before
        self.is_interrupted = False  # the open step had a pause
        self._keeps_all, self._times_all = keeps_all, times_all
        self._forget()

    def _forget(self) -> None:
        self.rows = array("d")
        self.sums = [0.0] * ROW_LENGTH  # over the steps that are timed
        self.seconds = 0.0  # of all steps, on the host's clock

    def restart(self) -> None:
        """Forget the steps so far: they belonged to no training. The open one is the first."""
        self._forget()
        self.number = 0

    def open(self) -> None:
        """Begin a step now."""
        self.updates, self.is_interrupted = 0, False
        self.clock.is_coarse = not self._is_timed(self.number)
        self.clock.open()

    def end_with(self, phase: int) -> None:
        """End the open step with ``phase``, and begin the next one."""
        clock, is_next_timed = self.clock, self._is_timed(self.number + 1)
        clock.is_coarse &= not is_next_timed  # the mark is also the first of the next step
        clock.mark(phase)
        self._end(reopen=True)
        clock.is_coarse = not is_next_timed

    def end_at_last_mark(self) -> None:
        """End the open step with its last mark; what follows belongs to no step, or to another stretch."""
        self._end(reopen=False)

    def begin_stretch(self) -> None:
        """Drop the open step. The next one does not follow the last one without a pause."""
        self.clock.drop()
        self.stretch += 1

    def finish(self) -> None:
        """No step follows. One that is open and has made an update counts, but has no times."""
        self.number += self.clock.is_open and self.updates > 0
        self.clock.drop()
        self.flush()

    def flush(self) -> None:
        """Read the times of all steps that have ended, after waiting for the device."""
        self._keep(self.clock.finish())

    @property
    def has_made_all_updates(self) -> bool:
        """Whether the open step has made as many updates as the one before, and at least one."""
        return self.updates >= max(1, self._updates_before)

    def _end(self, reopen: bool) -> None:
        label = StepLabel(self.number, self.stretch, self.samples, self.updates) if self._is_timed(self.number) else None
        self.seconds += self.clock.close(label, reopen)
        self.number += 1
        self.stretch += self.is_interrupted
        self._updates_before, self.updates, self.is_interrupted = self.updates, 0, False
        self._keep(self.clock.finished())

    def _keep(self, steps: Sequence[StepTimes[StepLabel]]) -> None:
        for times in steps:
            row = make_row(times)
            self.sums = add_row(self.sums, row)
            if self._is_kept(times.label.number):
                self.rows.extend(row)

    def _is_timed(self, number: int) -> bool:
        """Whether the phases of the step with that number are timed."""
        return self._times_all or self._is_kept(number)

    def _is_kept(self, number: int) -> bool:
        """Whether the step with that number has a row."""
        return self._keeps_all or is_kept(number)
