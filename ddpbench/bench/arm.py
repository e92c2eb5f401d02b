"""An arm: one training in its turns, between which it holds nothing on the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

import msgspec
import torch
from torch import nn

from ddpbench.bench.dry_run import TRIAL, agree_that_it_fits, agree_that_it_works
from ddpbench.bench.earlier import ELSEWHERE
from ddpbench.bench.epoch_progress import epoch_progress
from ddpbench.bench.gathering import collect, pulled_down
from ddpbench.bench.lengths import steps_an_epoch, steps_asked_for, steps_on_cpu, steps_on_gpu, warm_up_limit_s
from ddpbench.bench.terms import ALONE, Terms
from ddpbench.data.loader import Loader, Opener
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.registry import find
from ddpbench.data.shard import Shard
from ddpbench.data.validation import held_out
from ddpbench.distributed.agreement import Found
from ddpbench.distributed.room import with_room
from ddpbench.distributed.world import World
from ddpbench.machine.affinity import keep_to
from ddpbench.machine.backends import set_threads
from ddpbench.machine.progress_marker import Pulse, Turn
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import REPLAY, SYNTHETIC
from ddpbench.record.record import Attestation, Data, Preparation, Round
from ddpbench.record.resolved import Settled
from ddpbench.record.trace import Trace
from ddpbench.training.evaluate import accuracy
from ddpbench.training.loss import LOSSES
from ddpbench.training.offload import Parked
from ddpbench.training.profiler import kernel_ms
from ddpbench.training.session import Session
from ddpbench.training.warmup import LEAST_WARM_UP, first_step_patience_s, warm_up, warm_up_again
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.clone import copied
from ddpbench.workloads.init_model import drawn, shared

OPENING = "opening the loader"
"""The phase of a run in which an arm gets its loader."""


class Arm:
    """One Config's training through its turns.

    Where it runs out of memory and no other rank can be waiting for this one in a collective, ``enter`` and ``round`` raise DoesNotFit,
    on all ranks alike: it is over, and others go on.
    """

    def __init__(self, config: Settled, world: World, pulse: Pulse, terms: Terms = ALONE) -> None:
        self.config = config
        self.index = terms.index
        self.over = terms.earlier.over  # more rounds would tell nothing: its numbers are dead, or it does not fit
        self.done = terms.earlier.rounds
        self.attestation: Attestation | None = None
        self.preparation: Preparation | None = None
        self.data: Data | None = None
        self._world, self._pulse = world, pulse
        self._arms, self._trace_file = terms.arms, terms.trace_file
        self._opener, self._brief, self._beside, self._report = terms.opener, terms.brief, terms.beside, terms.report
        self._spec = workloads.find(config.workload)
        self._shard = Shard.of(self._spec.dataset, self._spec.classes, world)
        self._left_over: object = None
        self._session: Session | None = None
        self._parked: Parked | None = None
        self._steps = terms.earlier.steps  # a round
        self._images_before = terms.earlier.images
        self._in_flight = 0
        self._steps_before = 0  # in earlier sessions, each of which reads the files from the first on

    def enter(self) -> None:
        """Puts the arm on the device and warms it up; nothing to do where it is there already."""
        self._pulse.turn = Turn(self.index, self.config.batch_size)
        if self._session is None:
            self._with_room("", self._enter)

    def _with_room(self, when: str, do: Callable[[], Found]) -> Found:
        """What ``do`` gives; one rank alone, with other arms to go on with, outlives that it runs out of memory."""
        if self._arms == 1 or self._brief or self._world.seat.world_size > 1:
            return do()
        return with_room(self._world, f"at batch {self.config.batch_size}{when}", do)

    def _enter(self) -> None:
        set_threads(self.config.threads)
        keep_to(self.config.cores, self._world.seat.local_rank)
        begin = perf_counter()
        model, loss_of = self._model(self.config.seed), LOSSES[self._spec.loss]()
        if self._arms > 1 and not self._steps and not self._brief:
            self._pulse.enter(TRIAL)
            agree_that_it_fits(self.config, self._spec, model, loss_of, self._world)
        loader = self._resident() if self.config.fresh and self.data else self._open_loader(self.config.seed)
        self._pulse.patience_s = first_step_patience_s(self.config)
        if self._brief and self._brief.on_trial and not self._steps:
            self._pulse.enter(TRIAL)
            agree_that_it_works(self.config, model, loss_of, loader, self._world)
        if self._beside:
            loss_of.register_forward_hook(self._clear_away)
        self.data, self._in_flight = self.data or loader.data, loader.in_flight
        try:
            self._refuse_other_data(self.data.images)
            own = copied(model, self._world.device.torch) if self._shares_weights else model
            self._session = Session(self.config, own, loss_of, loader, self._world, self._pulse, self._parked)
        except BaseException:
            loader.close()
            raise
        limit_s = self._warm_up_limit_s()
        if self._steps:
            warm_up_again(self._session, limit_s)
        else:
            least = 0 if self._brief else LEAST_WARM_UP
            self.preparation, self.attestation, step_s = warm_up(self._session, perf_counter() - begin, limit_s, least)
            self._steps = self._steps_a_round(self._world.most(step_s))
        self._plan(self._session, self._parked.update if self._parked else 0)

    def _plan(self, session: Session, done: int) -> None:
        """Tells one training of all rounds how long it is, and how many of its updates are done; a fresh round plans for itself."""
        if not self.config.fresh:
            session.plan(self._steps * self.config.rounds, self._steps_an_epoch(), done)

    def _warm_up_limit_s(self) -> float | None:
        if self._brief:
            return self._brief.warm_up_s
        return warm_up_limit_s(self.config, self._world.device.torch.type, self._arms)

    def _clear_away(self, *_: object) -> None:
        self._left_over = None

    def _model(self, seed: int) -> nn.Module:
        """As its seed draws it. Where weights are shared it is to be copied, not changed: other arms begin with the same."""
        self._pulse.enter("building the model")
        draw = shared if self._shares_weights else drawn
        return draw(self._spec.model, self.config.image_size, self._spec.classes, seed)

    @property
    def _shares_weights(self) -> bool:
        """Not on a processor, where the memory that they lie in would be charged to whichever arm trains."""
        return bool(self.config.fresh) and self._world.device.cuda

    def _open_loader(self, seed: int) -> Loader:
        return self._opened(self._opener, msgspec.structs.replace(self.config, seed=seed))

    def _resident(self) -> Loader:
        """A batch that lies on the device: enough to settle on where each round opens a loader anyway, whose workers start slowly."""
        return self._opened(open_loader, msgspec.structs.replace(self.config, loader=SYNTHETIC, data_dir=None))

    def _opened(self, opener: Opener, config: Settled) -> Loader:
        self._pulse.enter(OPENING)
        return opener(config, self._shard)

    def leave(self) -> None:
        """Parks the training on the host and frees the device."""
        self._pulse.turn = None
        if self._session is not None:
            self._steps_before += self._session.steps_trained
            self._parked = self._session.close()
            self._session = None

    def round(self, index: int) -> Round | None:
        """One timed round of all ranks, gathered off the clock; ``None`` on every rank but 0.

        A throttled round is tried once more, unless it is a training of whole epochs, which takes long.
        """
        return self._with_room(f" in round {index + 1}", lambda: self._round(index))

    def _round(self, index: int) -> Round | None:
        assert self._session is not None, "a round between enter and leave"
        began_at = self._session.update
        trace = self._measured(index)
        if not (self.config.fresh and self.config.epochs) and self._world.any(pulled_down(trace)):
            self._plan(self._session, began_at)  # or the schedule would have run out before the last round
            trace = msgspec.structs.replace(self._measured(index), retried_for="throttle")
        self._note_rereading()
        dead = trace.numerics.nonfinite_step is not None
        self.over = self._world.any(dead)
        self._pulse.enter("gathering the round")
        traces = self._world.gather(trace)
        return collect(index, traces, self.config.engine) if traces else None

    def _measured(self, index: int) -> Trace:
        """One round: the next of one training, or a training of its own."""
        assert self._session is not None, "a round between enter and leave"
        trace = self._trained_anew(self._session, index) if self.config.fresh else self._next_round(self._session)
        if not self.config.validate:
            return trace
        self._pulse.enter("validating")
        held = held_out(self.config, self._shard)
        named_right = None if held is None else accuracy(self._session, held)
        return msgspec.structs.replace(trace, numerics=msgspec.structs.replace(trace.numerics, accuracy=named_right))

    def _next_round(self, session: Session) -> Trace:
        if self._brief:
            return session.round(self._steps, self._brief.warm_up_s)
        return session.round(self._steps, during=self._epoch_progress())

    def _trained_anew(self, session: Session, index: int) -> Trace:
        """A training whose weights and shuffling follow from its number."""
        seed = self.config.seed + index
        session.start_over(self._model(seed).state_dict(), lambda: self._open_loader(seed))
        session.plan(self._steps, self._steps_an_epoch())
        torch.manual_seed(seed)
        if self._beside:
            self._left_over = self._beside(self._world.device)
        return session.round(self._steps, drain_s=0.0, during=self._epoch_progress())

    def _epoch_progress(self) -> AbstractContextManager[None]:
        """Reports the epoch that a round of several is in; does nothing on ranks other than 0."""
        epochs = self.config.epochs or 1
        if self._report is None or epochs == 1:
            return nullcontext()
        return epoch_progress(self._pulse, self._steps_an_epoch(), epochs, self._report)

    def _refuse_other_data(self, images: int | None) -> None:
        """Raises UsageError if there are not as many images as in earlier rounds: these would not be of one figure."""
        if (before := self._images_before) and before != images:
            raise UsageError(f"the data have {images or 0:,} images, and had {before:,} when these trainings began", ELSEWHERE)

    def _note_rereading(self) -> None:
        """Files that were read before come from the page cache: the figure says nothing of the storage."""
        assert self._session is not None
        if self._spec.dataset != "imagenet":
            return  # it lies in memory, and says nothing of storage ever
        loader = find(self.config.loader)
        if not loader.reads_files or loader.own or loader.name == REPLAY:
            return  # no file is read while this is timed, or nobody knows which
        read = (self._steps_before + self._session.steps_trained) * self.config.batch_size * self._world.size
        if self.data and self.data.images and read > self.data.images:
            self.data = msgspec.structs.replace(self.data, recycled=True)

    @property
    def can_look_inside(self) -> bool:
        """Whether the profiler has something to tell: of kernels on a GPU, or to who asked for its trace."""
        return not self.over and (self._world.device.cuda or self._trace_file is not None)

    def look_inside(self) -> float | None:
        """Milliseconds of kernels a step, from the profiler; None on a CPU. Only when every timed round of every arm is over:

        once the profiler has run, every launch of this process is slower.
        """
        assert self._session is not None, "between enter and leave"
        self._pulse.enter("profiling")
        return kernel_ms(self._session, self._trace_file)

    def _steps_a_round(self, step_s: float) -> int:
        if (asked := steps_asked_for(self.config, self._steps_an_epoch())) is not None:
            return asked
        assert self.data is not None, "a loader was opened"
        workers = self.data.workers_where(self.config.workers)
        makers = find(self.config.loader).makers(workers) if self._in_flight else 0
        if self._brief:
            return self._brief.steps(step_s, makers)
        if self._world.device.cuda:
            return steps_on_gpu(step_s, makers)
        return steps_on_cpu(step_s, makers, self.config.rounds, self._arms)

    def _steps_an_epoch(self) -> int:
        """Of the data, over all ranks; a round's, where nobody counts them."""
        if self.data is None or not self.data.images:
            return self._steps
        return steps_an_epoch(self.data.images, self.config.batch_size, self._world.size)
