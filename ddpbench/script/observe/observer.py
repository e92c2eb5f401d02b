"""Follows the script from batch to update: which loader trains, what a step is, and what happens outside of steps.

A step is one batch of the training loader, from one request to the next. The training loader is the one whose batches updates follow. A
single batch of another loader in between belongs to the step (``zip``, a second loader for a discriminator); two or more in a row are
validation, and so is an iteration over the training loader itself in which nothing runs backward. If the first updates follow no batch of
a loader, a step is one update of the first optimizer, from one to the next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from ddpbench.machine.step_timer import DATA, HOST_TO_DEVICE, OPTIMIZER
from ddpbench.machine.variables import EnvVar
from ddpbench.record.script import OutsideKind
from ddpbench.script.observe.batch_sizes import DrawnSizes
from ddpbench.script.observe.contained import contained
from ddpbench.script.observe.outside import Moment, OutsideTime
from ddpbench.script.observe.repeated_batches import RepeatedWorkers
from ddpbench.script.observe.source import LoaderSource, num_elements
from ddpbench.script.observe.steering import Steering
from ddpbench.script.observe.step_clock import EPOCH_START, SCRIPT
from ddpbench.script.observe.steps import StepLog
from ddpbench.script.observe.watched_iterator import WatchedIterator

UPDATES_WITHOUT_LOADER = 5
"""Updates without a batch of a DataLoader after which steps are updates: one or two can be a trial, or satisfy a schedule."""

NO_THREAD = -1
"""In place of the thread that is watched: the watching has ended, or is paused."""

MIN_PAUSE_S = 0.1
"""A shorter checkpoint inside of a step is the script's own work in it: some scripts save after every step."""


class Observer:
    """The state of one watched script, changed by its hooks in one thread: the one that trains. Calls from others are ignored.

    Until the first update it is the one that created the observer. ``on_first_batch`` is called once: when the script requests its first
    batch, or has turned out to train without a DataLoader. With ``steering`` all steps are kept, with ``times_all`` all are timed.
    """

    def __init__(
        self, on_first_batch: Callable[[], None] = lambda: None, steering: Steering | None = None, times_all: bool = False
    ) -> None:
        self.steering = steering
        self._has_peers = os.environ.get(EnvVar.WORLD_SIZE, "1") != "1"
        self.repeated_workers = RepeatedWorkers()
        self.steps = StepLog(keeps_all=steering is not None, times_all=times_all)
        self.clock = self.steps.clock
        self.outside = OutsideTime()
        self.drawn = DrawnSizes()
        self.moves = 0  # calls of hooks: it stands still while the script does
        self.training: LoaderSource | None = None
        self.device: torch.device | None = None
        self.optimizers: list[str] = []
        self.updates = self.epochs = 0
        self.steps_are_updates = False  # the batches come from no loader that is watched
        self.problem = ""  # the error that has ended the watching early
        self._on_first_batch, self._is_reporting = on_first_batch, False
        self.thread = threading.get_ident()
        self._sources: WeakKeyDictionary[Any, LoaderSource] = WeakKeyDictionary()
        self._possible_wrappers: WeakKeyDictionary[Any, LoaderSource] = WeakKeyDictionary()
        self._requested: WatchedIterator | None = None  # waits for its batch
        self._last: LoaderSource | None = None  # of the last batch
        self._iterator: Callable[[], WatchedIterator | None] = lambda: None  # weak: whether the script still has it
        self._foreign_batches = 0  # of other loaders, since the last batch of the training loader
        self._marks_before_foreign, self._foreign_since = 0, Moment.now()
        self._other_created: tuple[int, Moment] | None = None  # marks, and when an iterator of another loader was created
        self._epoch_batches = 0  # batches that the script has got from the last iterator of the training loader
        self._has_inner_batch = False  # the loader has taken a batch from the one that it wraps, for the present request
        self._last_loss: torch.Tensor | None = None
        self.first_loss: torch.Tensor | None = None
        self.losses: list[torch.Tensor] | None = None
        """While it is a list, every loss is kept in it."""
        self._is_exhausted = False  # the script has left the last epoch of the training loader
        self._replaced: LoaderSource | None = None  # the training loader before the present one, which may still turn out not to train
        self._exhaustion_s = 0.0  # that the last iterator of the training loader took to end, with its workers

    @property
    def observer(self) -> Observer:
        """Itself: what ``contained`` reports errors to."""
        return self

    def fail(self, problem: Exception) -> None:
        """Stop watching because of an error in ddpbench."""
        self.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        self.deactivate()
        if self.steering:
            self.steering.give_up(self.problem)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the calls of this thread, which are not the script's own."""
        if not self.is_active:
            yield
            return
        thread, self.thread = self.thread, NO_THREAD
        try:
            yield
        finally:
            self.thread = thread

    def leave_to_parent(self) -> None:
        """Ignore all further calls: this is a forked child. It frees nothing, since CUDA events cannot be freed in it."""
        self.thread = NO_THREAD

    def deactivate(self) -> None:
        """Ignore all further calls."""
        self.thread = NO_THREAD
        self.clock.drop()

    def follow_training(self) -> None:
        """An optimizer makes its step in this thread. If no other one trains, this is the thread that does."""
        if not self.is_active and self._may_train_elsewhere:
            self.thread = threading.get_ident()
            self.clock.drop()
            self._requested = self._last = None

    @property
    def _may_train_elsewhere(self) -> bool:
        """Whether another thread may turn out to be the one that trains: the present one has not, or has ended."""
        if self.thread == NO_THREAD:
            return False
        return not self.updates or all(each.ident != self.thread for each in threading.enumerate())

    @property
    def is_active(self) -> bool:
        """Whether the calling thread is the one that is watched."""
        return threading.get_ident() == self.thread

    # batches

    @contained
    def begin_epoch(self, loader: Any, may_wrap: bool) -> bool | None:
        """The script is about to create an iterator of ``loader``, as in ``watch``. Returns whether that can wait for the first batch."""
        if not self.is_active:
            return False
        source = self._sources_of(may_wrap).get(loader)
        made_by = source and (source.inner or source)
        if self.clock.is_open and self._requested is None and not self._foreign_batches and made_by is not self.training:
            self.clock.mark(SCRIPT)  # if it is for validation, the start of its workers belongs to that
            self._other_created = self.clock.num_marks, Moment.now()
        return self.steering.begin_epoch(loader, source) if self.steering else False

    @contained
    def watch(self, loader: Any, iterator: Any, may_wrap: bool, restart: Callable[[], Any], creation_s: float = 0.0) -> Any:
        """The iterator that the script gets in place of ``iterator``, which its ``loader`` has just created; ``restart`` creates another.

        ``may_wrap`` says that it may take its batches from another DataLoader. It took ``creation_s`` to create.
        """
        if isinstance(iterator, WatchedIterator) or not (self.is_active or self._may_train_elsewhere):
            return iterator
        if self.is_active and self._requested is not None and not self._requested.may_wrap:  # created in the script's dataset
            return iterator
        sources = self._sources_of(may_wrap)
        source = sources.get(loader)
        if source is None:
            source = sources[loader] = LoaderSource.of(loader)
        counted: Callable[[], int | None] = partial(self.drawn.of_last_batch, iterator)
        if self.steering and source.inner is None:
            iterator = self.steering.steer(loader, iterator, source, restart)
            counted = partial(getattr, iterator, "samples")
        return WatchedIterator(iterator, source, self, may_wrap, counted, creation_s)

    def _sources_of(self, may_wrap: bool) -> WeakKeyDictionary[Any, LoaderSource]:
        """A loader may be in both: its class calls ``super().__iter__()``."""
        return self._possible_wrappers if may_wrap else self._sources

    @contained
    def begin_batch(self, iterator: WatchedIterator) -> bool | None:
        if not self.is_active:
            return False
        if self._requested is not None:
            return self._begin_inner_batch(self._requested, iterator.source)
        self._begin_reporting()
        self.moves += 1
        self._requested, self._has_inner_batch = iterator, False
        if self._is_exhausted and iterator.received == 0 and self._replaces_training(iterator.source):
            assert self.training is not None, "it is replaced"
            iterator.source.is_rebuilt, iterator.source.received_before = True, self.training.total_received
            self._replaced, self.training = self.training, iterator.source
        if iterator.source is self.training or self._may_train:
            if self._iterator() is not iterator:
                self._iterator = ref(iterator)
            self._begin_step(iterator)
        else:
            self._begin_foreign_batch(is_first=iterator.received == 0)
        return True

    def _begin_reporting(self) -> None:
        if not self._is_reporting:
            self._is_reporting = True
            self._on_first_batch()

    def _begin_inner_batch(self, outer: WatchedIterator, source: LoaderSource) -> bool:
        """The loader of ``outer`` requests a batch from a DataLoader inside of it, if it may: datasets can iterate over one, too."""
        if not outer.may_wrap:
            return False
        outer.take_from(source)
        self._has_inner_batch = True
        self.clock.mark(HOST_TO_DEVICE)  # what it has done so far, such as copying the batch that it holds
        return True

    @contained
    def end_batch(self, iterator: WatchedIterator, batch: Any) -> None:
        source = iterator.source
        wait = EPOCH_START if iterator.is_new and source.workers else DATA
        iterator.is_new = False
        if self._requested is not iterator:
            self.clock.mark(wait)
            if self._requested is not None:
                self._requested.take_batch_of(iterator.num_samples_in(batch))
            return
        self.clock.mark(HOST_TO_DEVICE if self._has_inner_batch else wait)
        self._requested, self._last = None, source
        self.moves += 1
        iterator.received += 1
        source.receive(batch)
        samples = iterator.num_samples_in(batch)
        if self.steering is None:  # a diagnosis compares samples itself
            self.repeated_workers.receive(source, batch, samples)
        if source is self.training or self._may_train:
            self._epoch_batches = iterator.received
        if self._foreign_batches == 0:
            self.steps.samples = samples
            self.steps.elements = num_elements(batch) if self._has_peers else 0

    @contained
    def end_iteration(self, iterator: WatchedIterator) -> None:
        if self._requested is not iterator:
            self.clock.mark(DATA)
            return
        self._requested = None
        self.moves += 1
        if iterator.source is self.training or self._may_train:
            self._exhaustion_s = self.clock.open_s
            self._end_epoch()
            self.outside.enter("between-epochs")
        else:
            self._foreign_batches -= 1
            if self.outside.kind and self._is_exhausted:
                self.outside.enter("between-epochs")

    def _replaces_training(self, source: LoaderSource) -> bool:
        """Whether the script has dropped its training loader, and may have created ``source`` in its place."""
        if self.training is None or source is self.training or not source.gives_same_batches(self.training):
            return False
        return all(each is not self.training for sources in (self._sources, self._possible_wrappers) for each in sources.values())

    @property
    def _may_train(self) -> bool:
        """Whether any loader may turn out to be the one whose batches updates follow."""
        return self.training is None and not self.steps_are_updates

    def is_companion(self, source: LoaderSource) -> bool:
        """Whether nearly every step has had exactly one batch of ``source``, besides that of the training loader."""
        return source.paired_steps >= max(1, self.num_batches - 2)

    def _begin_step(self, iterator: WatchedIterator) -> None:
        """A batch of the training loader is requested."""
        clock, is_first = self.clock, iterator.received == 0
        if self._foreign_batches == 1 and self._last is not None:
            self._last.paired_steps += 1
        if is_first and self._epoch_batches > 1 and not self._is_exhausted:
            self._leave_epoch()
        self._foreign_batches, self._other_created = 0, None
        creation_s = iterator.creation_s if is_first else 0.0
        if clock.is_open and clock.num_marks:
            self.steps.end_with(SCRIPT, creation_s)
        if is_first:
            self.outside.add("validation", self.steps.drop_evaluation())
            self.steps.begin_iteration()
        if not clock.is_open:
            self.epochs += self._is_exhausted or not self.epochs
            self._is_exhausted = False
            self._open_step(creation_s)

    def _open_step(self, creation_s: float = 0.0) -> None:
        """Begin a step. It took ``creation_s`` of the time since the last one to create the iterator of its batch."""
        self.outside.leave(creation_s)
        self.steps.open(self._exhaustion_s + creation_s)
        self._exhaustion_s = 0.0

    def _leave_epoch(self) -> None:
        """The script has left an epoch before its end: its last step ended with the last mark before the next epoch was begun."""
        if self.clock.num_marks:
            if self._foreign_batches:  # of a loader that is zipped with the training loader
                self.clock.truncate(self._marks_before_foreign - 1)
            self.outside.enter("between-epochs", Moment.now()._replace(time_s=self.clock.last_s))
            self.steps.end_at_last_mark()
        self._end_epoch()

    def _end_epoch(self) -> None:
        self.steps.begin_stretch()
        if evaluation_s := self.steps.drop_evaluation():
            self.outside.add("validation", evaluation_s + self._exhaustion_s)
            self._exhaustion_s = 0.0
            if self.training is not None:
                self.epochs -= 1
                self.training.received -= self._epoch_batches
                self.training = self._replaced or self.training
        self._is_exhausted, self._replaced = True, None

    def note_backward(self, loss: object) -> None:
        """Gradients of ``loss`` are computed: the present iteration over the training loader trains."""
        self._last_loss = loss.detach() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None
        if self.first_loss is None and self.steering:
            self.first_loss = self._last_loss
        if self.losses is not None and self._last_loss is not None:
            self.losses.append(self._last_loss)
        self.steps.train()

    @property
    def has_finite_loss(self) -> bool:
        """Whether the last loss is finite, or unknown. Waits for the device: to be asked between two windows, or at the end, only."""
        return self._last_loss is None or bool(self._last_loss.isfinite())

    def _begin_foreign_batch(self, is_first: bool) -> None:
        """A batch of another loader is requested. ``is_first`` says that it is the first of its iterator."""
        self._foreign_batches += 1
        if self._foreign_batches == 1:
            self.clock.mark(SCRIPT)
            created, self._other_created = self._other_created, None
            self._marks_before_foreign, self._foreign_since = (created if is_first else None) or (self.clock.num_marks, Moment.now())
            return
        if self.clock.is_open:  # the second in a row: the step had ended before the first
            self.clock.truncate(self._marks_before_foreign)
            if not self.steps_are_updates:  # otherwise it has made no update
                self.steps.end_at_last_mark()
            self.steps.begin_stretch()
        if self.outside.kind != "validation":
            self.outside.enter("validation", self._foreign_since)

    # time outside of steps

    @contained
    def pause(self) -> OutsideKind | None:
        """A checkpoint begins. Returns what it interrupts, for ``resume``."""
        if not self.is_active:
            return None
        self.clock.mark(SCRIPT)
        self.moves += 1
        before = self.outside.kind
        self.outside.enter("checkpoint")
        return before

    @contained
    def resume(self, before: OutsideKind | None) -> None:
        """The checkpoint has ended."""
        if not self.is_active:
            return
        self.moves += 1
        if self.clock.is_open and self.outside.present_s < MIN_PAUSE_S:
            self.clock.mark(SCRIPT)
            self.outside.forget()
        elif self.clock.is_open:
            self.clock.mark_pause()
            self.steps.is_interrupted = True
        if before is None:
            self.outside.leave()
        else:
            self.outside.enter(before)

    # updates

    def use_device(self, device: torch.device) -> None:
        """The model is on ``device``."""
        self.device = device
        self.clock.use_device(device)

    @contained
    def end_update(self, is_first_optimizer: bool) -> None:
        """An optimizer has made its step. ``is_first_optimizer`` says that it is the one that was the first to make one."""
        self.moves += 1
        self.updates += 1
        self.steps.train()
        self.steps.updates += 1
        if self.steering:
            self.steering.after_update(self.updates)
        if is_first_optimizer and (self._last is None or self.steps_are_updates):
            self._end_step_without_loader()
            return
        self.clock.mark(OPTIMIZER)
        if self._last is None or self._last is self.training or self.steps_are_updates:
            return
        if self.training is None or self._is_exhausted or self._foreign_batches > 1:
            self._begin_training(self._last)

    def _end_step_without_loader(self) -> None:
        self._foreign_batches, self.steps.samples = 0, 1
        if self.clock.is_open:
            self.steps.end_with(OPTIMIZER)
        else:
            self._open_step()
        if self.num_batches == UPDATES_WITHOUT_LOADER and not self.steps_are_updates:
            self.steps_are_updates = self.outside.is_counted = True
            self._begin_reporting()

    def _begin_training(self, source: LoaderSource) -> None:
        """The batches of ``source`` are trained on. Steps of other loaders before the first update were none."""
        if self.training is None:
            self.steps.restart()
            self.epochs = 0
        if self._is_exhausted or not self.epochs:
            self.epochs += 1
        self.outside.rename("between-epochs")  # its first batch did not look like one of training
        self.training, self._foreign_batches, self._is_exhausted, self.outside.is_counted = source, 0, False, True

    def finish(self) -> None:
        """The script has ended. A step that it left open has no times; the time after the last step or validation is no training."""
        if not self.is_active:
            self.thread = NO_THREAD  # called by another thread: the watched one may be in the middle of a step
            return
        if self.outside.kind != "between-epochs":
            self.outside.leave()
        self.steps.finish()
        self.deactivate()

    @property
    def num_batches(self) -> int:
        """Steps so far."""
        return self.steps.number

    @property
    def outside_kind(self) -> OutsideKind | None:
        """What the script does outside of its steps; None in a step. It has left the loop if it has dropped the iterator."""
        kind = self.outside.kind  # another thread may call this
        has_left_loop = self._iterator() is None and not self.steps_are_updates
        return kind if kind else "between-epochs" if has_left_loop else None

    @property
    def waits_for_data(self) -> bool:
        return self._requested is not None
