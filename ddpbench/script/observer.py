"""Follows the script from batch to update: which loader trains, what a step is, and what happens outside of steps.

A step is one batch of the training loader, from one request to the next. The training loader is the one whose batches updates follow. A
single batch of another loader in between belongs to the step (``zip``, a second loader for a discriminator); two or more in a row are
validation.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

import torch

from ddpbench.machine.step_timer import DATA, OPTIMIZER
from ddpbench.record.script import OutsideKind
from ddpbench.script.rows import ROW_LENGTH, add_row, is_kept, make_row
from ddpbench.script.source import LoaderSource
from ddpbench.script.step_clock import SCRIPT, StepClock, StepTimes
from ddpbench.script.watched_iterator import WatchedIterator

Method = TypeVar("Method", bound=Callable[..., Any])


def contained(method: Method) -> Method:
    """Decorator of methods that the script's own calls reach: an error in one ends the watching, not the script. It returns None then."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as problem:
            self.observer.fail(problem)
            return None

    return call  # type: ignore[return-value]


class StepLabel(NamedTuple):
    """What a row has besides the times of its step."""

    number: int  # of the batch, from 0
    stretch: int  # steps of one stretch follow each other without a pause
    samples: int
    updates: int


class Observer:
    """The state of one watched script, changed by its hooks in the thread that created it. Calls from other threads are ignored.

    ``on_first_batch`` is called when the script requests its first batch.
    """

    def __init__(self, on_first_batch: Callable[[], None] = lambda: None) -> None:
        self.clock: StepClock[StepLabel] = StepClock()
        self.rows = array("d")
        self.sums = [0.0] * ROW_LENGTH  # over all steps, also those that have no row
        self.moves = 0  # calls of hooks: it stands still while the script does
        self.training: LoaderSource | None = None
        self.device: torch.device | None = None
        self.optimizers: list[str] = []
        self.updates = self.epochs = 0
        self.steps_s = 0.0
        self.outside_s: dict[OutsideKind, float] = {}
        self.problem = ""  # the error that has ended the watching early
        self._on_first_batch = on_first_batch
        self._thread = threading.get_ident()
        self._sources: WeakKeyDictionary[Any, LoaderSource] = WeakKeyDictionary()
        self._possible_wrappers: WeakKeyDictionary[Any, LoaderSource] = WeakKeyDictionary()
        self._requested: WatchedIterator | None = None  # waits for its batch
        self._last: LoaderSource | None = None  # of the last batch
        self._iterator: Callable[[], WatchedIterator | None] = lambda: None  # weak: whether the script still has it
        self._number = self._stretch = 0
        self._step_samples = self._step_updates = self._updates_before = 0  # of the open step; updates of the one before
        self._foreign_batches = 0  # of other loaders, since the last batch of the training loader
        self._marks_before_foreign, self._foreign_since = 0, 0.0
        self._is_exhausted = False  # the iterator of the training loader has ended
        self._is_interrupted = False  # the open step had a pause
        self._outside: tuple[OutsideKind, float] | None = None  # since when the script has been outside of steps

    @property
    def observer(self) -> Observer:
        """Itself: what ``contained`` reports errors to."""
        return self

    def fail(self, problem: Exception) -> None:
        """Stop watching because of an error in ddpbench."""
        self.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        self.deactivate()

    def deactivate(self) -> None:
        """Ignore all further calls: this is a forked child."""
        self._thread = -1
        self.clock.drop()

    @property
    def is_active(self) -> bool:
        """Whether the calling thread is the one that is watched."""
        return threading.get_ident() == self._thread

    # batches

    @contained
    def watch(self, loader: Any, iterator: Any, may_wrap: bool) -> Any:
        """The iterator that the script gets in place of ``iterator``, which its ``loader`` has just created.

        ``may_wrap`` says that it may take its batches from another DataLoader. If it does, only that one is watched.
        """
        if not self.is_active or isinstance(iterator, WatchedIterator):
            return iterator
        if self._requested is not None:  # created while another iterator was asked for a batch
            if not self._requested.source.may_wrap:
                return iterator
            self._requested.source.is_wrapper = True
            self._requested = None
        sources = self._possible_wrappers if may_wrap else self._sources  # a loader may be in both: its class calls super().__iter__()
        source = sources.get(loader)
        if source is None:
            source = sources[loader] = LoaderSource.of(loader, may_wrap)
        return iterator if source.is_wrapper else WatchedIterator(iterator, source, self)

    @contained
    def begin_batch(self, iterator: WatchedIterator) -> bool | None:
        if self._requested is not None or not self.is_active:
            return False
        self._requested = iterator
        if not self.moves:
            self._on_first_batch()
        self.moves += 1
        if self.training is None or iterator.source is self.training:
            if self._iterator() is not iterator:
                self._iterator = ref(iterator)
            self._begin_step()
        else:
            self._begin_foreign_batch()
        return True

    @contained
    def end_batch(self, iterator: WatchedIterator, batch: Any) -> None:
        if self._requested is not iterator:  # it has turned out to be a wrapper
            return
        self._requested, self._last = None, iterator.source
        self.moves += 1
        iterator.source.received += 1
        self.clock.mark(DATA)
        if self._foreign_batches == 0:
            self._step_samples = iterator.source.num_samples_in(batch)

    @contained
    def end_iteration(self, iterator: WatchedIterator) -> None:
        if self._requested is not iterator:
            return
        self._requested = None
        self.moves += 1
        if self.training is None or iterator.source is self.training:
            self._is_exhausted = True
            self.clock.drop()
            self._stretch += 1
            self._go_outside("between-epochs")
        elif self._outside and self._is_exhausted:
            self._go_outside("between-epochs")

    def _begin_step(self) -> None:
        clock, self._foreign_batches = self.clock, 0
        if clock.is_open:
            if clock.num_marks:
                clock.mark(SCRIPT)
                self._end_step(reopen=True)
            return
        self._leave_outside()
        self.epochs += self._is_exhausted or not self.epochs
        self._is_exhausted = False
        self._step_updates, self._is_interrupted = 0, False
        clock.open()

    def _end_step(self, reopen: bool) -> None:
        label = StepLabel(self._number, self._stretch, self._step_samples, self._step_updates)
        self.steps_s += self.clock.close(label, reopen)
        self._number += 1
        self._stretch += self._is_interrupted
        self._updates_before, self._step_updates, self._is_interrupted = self._step_updates, 0, False
        self._keep(self.clock.finished())

    def _begin_foreign_batch(self) -> None:
        self._foreign_batches += 1
        if self.clock.is_open and self._foreign_batches == 1:
            self.clock.mark(SCRIPT)
            self._marks_before_foreign, self._foreign_since = self.clock.num_marks, perf_counter()
        elif self.clock.is_open:  # the second in a row: the step had ended before the first
            self.clock.truncate(self._marks_before_foreign)
            self._end_step(reopen=False)
            self._stretch += 1
            self._outside = "validation", self._foreign_since
        else:
            self._go_outside("validation")

    # time outside of steps

    @contained
    def pause(self) -> OutsideKind | None:
        """A checkpoint begins. Returns what it interrupts, for ``resume``."""
        if not self.is_active:
            return None
        self.clock.mark(SCRIPT)
        self.moves += 1
        before = self._outside[0] if self._outside else None
        self._go_outside("checkpoint")
        return before

    @contained
    def resume(self, before: OutsideKind | None) -> None:
        """The checkpoint has ended."""
        if not self.is_active:
            return
        self.moves += 1
        if self.clock.is_open:
            self.clock.mark_pause()
            self._is_interrupted = True
        if before is None:
            self._leave_outside()
        else:
            self._go_outside(before)

    def _go_outside(self, kind: OutsideKind) -> None:
        self._leave_outside()
        self._outside = kind, perf_counter()

    def _leave_outside(self) -> None:
        if self._outside and self.training is not None:
            kind, since = self._outside
            self.outside_s[kind] = self.outside_s.get(kind, 0.0) + perf_counter() - since
        self._outside = None

    # updates

    def use_device(self, device: torch.device) -> None:
        """The model is on ``device``."""
        self.device = device
        self.clock.use_device(device)

    @contained
    def end_update(self) -> None:
        """An optimizer has made its step."""
        self.clock.mark(OPTIMIZER)
        self.moves += 1
        self.updates += 1
        self._step_updates += 1
        if self._last is None or self._last is self.training:
            return
        if self.training is None or self._is_exhausted or self._foreign_batches > 1:
            self._begin_training(self._last)

    def _begin_training(self, source: LoaderSource) -> None:
        """The batches of ``source`` are trained on. Steps of other loaders before the first update were none."""
        if self.training is None:
            del self.rows[:]
            self.sums = [0.0] * ROW_LENGTH
            self._number, self.steps_s, self.epochs = 0, 0.0, 0
        if self._is_exhausted or not self.epochs:
            self.epochs += 1
        if self._outside:
            self._outside = "between-epochs", self._outside[1]  # its first batch did not look like one of training
        self.training, self._foreign_batches, self._is_exhausted = source, 0, False

    def finish(self) -> None:
        """The script has ended. A step that it left open has no times; the time after the last step or validation is no training."""
        if not self.is_active:
            self._thread = -1  # called by another thread: the watched one may be in the middle of a step
            return
        self._number += self.clock.is_open and self._step_updates > 0
        self.clock.drop()
        if self._outside and self._outside[0] != "between-epochs":
            self._leave_outside()
        self._keep(self.clock.finish())
        self.deactivate()

    def _keep(self, finished: list[StepTimes[StepLabel]]) -> None:
        for times in finished:
            row = make_row(times)
            self.sums = add_row(self.sums, row)
            if is_kept(times.label.number):
                self.rows.extend(row)

    @property
    def num_batches(self) -> int:
        """Steps so far."""
        return self._number

    @property
    def outside_kind(self) -> OutsideKind | None:
        """What the script does outside of its steps; None in a step. It has left the loop if it has dropped the iterator."""
        outside = self._outside  # another thread may call this
        return outside[0] if outside else "between-epochs" if self._iterator() is None else None

    @property
    def waits_for_data(self) -> bool:
        return self._requested is not None

    @property
    def has_made_all_updates(self) -> bool:
        """Whether the open step has made as many updates as the one before, and at least one."""
        return self._step_updates >= max(1, self._updates_before)
