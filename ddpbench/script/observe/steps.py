"""The steps of a watched training: opened, closed, and kept as rows of numbers. What a step is, the observer decides."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ddpbench.script.observe.rows import NUMBER, ROW_LENGTH, add_row, is_kept, make_row
from ddpbench.script.observe.step_clock import StepClock, StepTimes


class StepLabel(NamedTuple):
    """What a row has besides the times of its step."""

    number: int  # from 0
    stretch: int  # steps of one stretch follow each other without a pause
    samples: int
    updates: int
    loader_ms: float = 0.0  # in which iterators of the training loader ended and were created, before the step
    loader_ms_in_script: float = 0.0  # the same, as a part of the script's own work at the end of the step
    iteration: int = 0  # of the training loader
    elements: int = 0  # of the tensors in the batch; 0 if they are not counted


class StepLog:
    """All steps of one rank. With ``keeps_all`` every one has a row; with ``times_all`` every one is part of ``sums``.

    A pass over the training loader in which nothing is trained is an evaluation. Until it shows, the steps of an iteration have no number.
    """

    def __init__(self, keeps_all: bool, times_all: bool = False) -> None:
        self.clock: StepClock[StepLabel] = StepClock()
        self.number = 0  # of the open step, or of the next one
        self.stretch = 0
        self.samples = self.elements = self.updates = 0  # of the open step
        self._updates_before = 0  # of the step before
        self.is_interrupted = False  # the open step had a pause
        self._keeps_all, self._times_all = keeps_all, times_all
        self._iteration, self._trains = 0, True  # the present iteration of the training loader, and whether it has been seen to train
        self._evaluations: set[int] = set()  # iterations that have turned out not to
        self._loader_ms = 0.0  # before the open step
        self._forget()

    def _forget(self) -> None:
        self.rows = array("d")
        self.sums = [0.0] * ROW_LENGTH  # over the steps that are timed
        self.seconds = 0.0  # of all steps, on the host's clock
        self._open_rows: list[list[float]] = []  # of the present iteration, as long as it has not been seen to train
        self._num_open, self._open_s = 0, 0.0  # its steps

    def restart(self) -> None:
        """Forget the steps so far: they belonged to no training. The open one is the first."""
        self._forget()
        self.number, self._trains = 0, True

    def open(self, loader_s: float = 0.0) -> None:
        """Begin a step now. It took ``loader_s`` to end the iterator of the loader before it, and to create the next one."""
        self.updates, self.is_interrupted, self._loader_ms = 0, False, 1e3 * loader_s
        self.clock.is_coarse = not self._is_timed(self._next_number)
        self.clock.open()

    def begin_iteration(self) -> None:
        """The next step has the first batch of an iterator of the training loader."""
        self._iteration += 1
        self._trains = False

    def train(self) -> None:
        """The present iteration trains."""
        if not self._trains:
            self._trains = True
            self.number += self._num_open
            self.seconds += self._open_s
            rows, self._open_rows, self._num_open, self._open_s = self._open_rows, [], 0, 0.0
            for row in rows:
                self._keep_row(row)

    def drop_evaluation(self) -> float:
        """The present iteration is over. If nothing was trained in it, forget its steps, and return their seconds."""
        if self._trains:
            return 0.0
        seconds = self._open_s
        self._evaluations.add(self._iteration)
        self._open_rows, self._num_open, self._open_s, self._trains = [], 0, 0.0, True
        return seconds

    def end_with(self, phase: int, loader_s: float = 0.0) -> None:
        """End the open step with ``phase``, and begin the next one.

        For ``loader_s`` of the time since its last mark an iterator of the loader was created.
        """
        clock, is_next_timed = self.clock, self._is_timed(self._next_number + 1)
        clock.is_coarse &= not is_next_timed  # the mark is also the first of the next step
        clock.mark(phase)
        self._end(reopen=True, loader_s=loader_s)
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

    @property
    def _next_number(self) -> int:
        """The number of the open step, or of the next one, if the present iteration trains."""
        return self.number + self._num_open

    def _end(self, reopen: bool, loader_s: float = 0.0) -> None:
        number, loader_ms = self._next_number, self._loader_ms
        label = StepLabel(number, self.stretch, self.samples, self.updates, loader_ms, 1e3 * loader_s, self._iteration, self.elements)
        seconds = self.clock.close(label if self._is_timed(number) else None, reopen) + loader_ms / 1e3
        if self._trains:
            self.number += 1
            self.seconds += seconds
        else:
            self._num_open += 1
            self._open_s += seconds
        self.stretch += self.is_interrupted
        self._updates_before, self.updates, self.is_interrupted, self._loader_ms = self.updates, 0, False, 0.0
        self._keep(self.clock.finished())

    def _keep(self, steps: Sequence[StepTimes[StepLabel]]) -> None:
        for times in steps:
            iteration, row = times.label.iteration, make_row(times)
            if iteration == self._iteration and not self._trains:
                self._open_rows.append(row)
            elif iteration not in self._evaluations:
                self._keep_row(row)

    def _keep_row(self, row: list[float]) -> None:
        self.sums = add_row(self.sums, row)
        if self._is_kept(int(row[NUMBER])):
            self.rows.extend(row)

    def _is_timed(self, number: int) -> bool:
        """Whether the phases of the step with that number are timed."""
        return self._times_all or self._is_kept(number)

    def _is_kept(self, number: int) -> bool:
        """Whether the step with that number has a row."""
        return self._keeps_all or is_kept(number)
