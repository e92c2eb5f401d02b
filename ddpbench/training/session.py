"""One arm on the device: model, optimizer, engine, loader; warmed up, timed in rounds, then parked on the host."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from time import perf_counter, thread_time
from typing import Any, Protocol

import torch
from torch import nn

from ddpbench.machine.clock import open_clock
from ddpbench.machine.core_use import CoreWatch
from ddpbench.machine.host import cpu_seconds
from ddpbench.machine.nvml import HealthWatch
from ddpbench.machine.pulse import Pulse
from ddpbench.machine.room import with_room
from ddpbench.machine.switches import set_for_training, without_trying
from ddpbench.machine.world import World
from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.config import Config
from ddpbench.record.loading import Loading
from ddpbench.record.record import Attestation, Preparation
from ddpbench.record.trace import Trace
from ddpbench.training.engine import bucket_bytes, make_engine
from ddpbench.training.ledger import Ledger, digest
from ddpbench.training.loop import Batches, Marked, mark_last_gradient, train
from ddpbench.training.optimizer import forget, make_optimizer
from ddpbench.training.parked import Parked, on_host
from ddpbench.training.placed import compiled, on_device
from ddpbench.training.precision import Observation, attest, observed, refuse_impossible
from ddpbench.training.schedule import Schedule

AGREEMENT = 0.03
"""Two warm-up windows agree when their step times differ by less than this fraction."""

LEAST_WARM_UP, WARMUP_LIMIT = 2, 10
"""Warm-up goes on for at least and at most this many windows."""

WARMUP_LIMIT_S = {"cuda": 30.0, "cpu": 12.0}

MOST_DRAINS, DRAIN_PORTIONS = 4, 4
WAITED = 0.25
"""A step waited for data when the host stood for this fraction of a step at the loader."""

FIRST_STEP_PATIENCE, COMPILE_PATIENCE = 2.5, 10.0
"""Times the hang timeout until the first step has ended: drivers load, cuDNN tries, compilers compile."""


class Loader(Batches, Protocol):
    """What a session asks of a loader beside batches."""

    in_flight: int  # most batches that can be ready after a pause

    def loading(self) -> Loading | None: ...

    def worker_pids(self) -> list[int]: ...

    def close(self) -> None: ...


def first_step_patience_s(config: Config) -> float:
    """How long the first step may last."""
    return config.hang_timeout * (FIRST_STEP_PATIENCE if config.compile == "off" else COMPILE_PATIENCE)


class Session:
    """A training that is live on the device, from its construction until ``close``."""

    def __init__(
        self, config: Config, model: nn.Module, loss_of: nn.Module, loader: Loader, world: World, pulse: Pulse, parked: Parked | None = None
    ) -> None:
        self.config = config
        self._world, self._pulse, self._device = world, pulse, world.device
        self._spec = PRECISIONS[config.precision]
        refuse_impossible(self._spec, self._device, config.engine, config.static_loss_scale)
        set_for_training(self._spec.tf32)
        torch.manual_seed(config.seed)
        pulse.patience_s = first_step_patience_s(config)

        self.model = on_device(model, config, self._device)
        self._compiled = config.compile != "off"
        self._clock = open_clock(pulse, self._device.torch)
        self._optimizer = make_optimizer(self.model, config)
        self._engine = make_engine(Marked(compiled(self.model, config), self._clock), self._optimizer, config, self._spec, world)
        if parked:
            self.go_on_from(parked)
        self._schedule = Schedule(self._optimizer, config)
        self._ledger = Ledger(self._optimizer, config.log_loss)
        self._loss_of = loss_of
        self._loader = loader
        self._workspace_bytes: int | None = None
        self.steps_trained = 0
        self._ahead = False  # whether the loader was seen to be faster than the device

    def warm_up(self, build_s: float, limit_s: float | None = None, least: int = LEAST_WARM_UP) -> tuple[Preparation, Attestation, float]:
        """Trains untimed until two windows agree; returns what it took, what was observed, and the seconds a step takes.

        After ``limit_s`` seconds no window begins any more that is not among the ``least``. A round that is a whole training needs one
        step: it is itself the time until everything has settled. All ranks agree on each decision, so that none of them waits for
        the others in a collective.
        """
        begin = perf_counter()
        first_batch_s, seen, step_s = self._first_step()
        first_step_s = perf_counter() - begin
        window, most = (1, 1) if self.config.fresh else (self.config.warmup or 1, WARMUP_LIMIT)
        least = min(most, least)
        limit_s = limit_s or WARMUP_LIMIT_S[self._device.torch.type]
        steps, agreed = 2, False
        for number in range(most):
            if number >= least and (agreed or self._world.most(perf_counter() - begin) > limit_s):
                break
            before, step_s = step_s, self._window_s(window) / window
            steps, agreed = steps + window, number > 0 and abs(step_s / before - 1) < AGREEMENT
        preparation = Preparation(
            build_s=build_s, first_batch_s=first_batch_s, first_step_s=first_step_s, warmup_steps=steps, warmup_agreed=agreed
        )
        return preparation, attest(self.model, seen, self._optimizer_name(), self.loss_scale(), self._engine.master), step_s

    def settle(self, limit_s: float | None = None) -> None:
        """Warms up again after another arm's turn, without looking: caches, clocks and the allocator come back. ``limit_s`` as there."""
        begin = perf_counter()
        self._first_step()
        if not self.config.fresh and not (limit_s and self._world.most(perf_counter() - begin) > limit_s):
            self._window_s(self.config.warmup or 1)

    def _first_step(self) -> tuple[float, Observation, float]:
        """One observed step, after which the end of backward can be marked, and one more.

        Returns the seconds that the batch of the first took, what was seen, and the seconds that the second took.
        """
        with observed(self.model, self._compiled) as seen:
            self._train(1)
        self._device.synchronize()
        assert seen.last_gradient is not None, "a step without gradients"
        mark_last_gradient(seen.last_gradient, self._clock)
        first_batch_s = self._clock.host_data_ms()[0] / 1e3
        if not self._compiled:
            self._workspace_bytes = self._device.free_workspaces()  # the next step takes them anew
        begin = perf_counter()
        self._train(1)  # a compiled model compiles now
        self._device.synchronize()
        step_s = perf_counter() - begin
        self._pulse.patience_s = self.config.hang_timeout
        return first_batch_s, seen, step_s

    def start_over(self, weights: Mapping[str, Any], open_loader: Callable[[], Loader]) -> None:
        """A new training on the same engine: other weights, no momentum, another loader's first batch, the loss scale as it begins.

        That loader is opened when the one before it is closed: two would take shared memory, cores and a device twice.
        """
        self._loader.close()
        self._loader = open_loader()
        self.model.load_state_dict(weights)
        forget(self._optimizer)
        self._engine.start_over()

    def go_on_from(self, parked: Parked) -> None:
        """The training that was parked, in place of this one; where its schedule stood is for ``plan``."""
        self.model.load_state_dict(parked.model)
        self._optimizer.load_state_dict(dict(parked.optimizer))
        self._engine.load_scaler_state(parked.scaler)

    def plan(self, steps: int, steps_an_epoch: int, done: int = 0) -> None:
        """Tells the schedule how long the training is, and how many of its updates are done."""
        self._schedule.plan(steps, steps_an_epoch, done)

    def accuracy(self, held_out: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """The fraction of held-out samples that the model names right, over the shares of all ranks.

        Raises DoesNotFit on every rank where one of them ran out of memory.
        """
        where = f"at batch {self.config.batch_size} in validation"
        right, seen = with_room(self._world, where, lambda: self._named_right(held_out))
        return self._world.total(right) / self._world.total(seen)

    def _named_right(self, held_out: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, int]:
        """How many of this rank's samples the model names right, of how many."""
        right, seen = torch.zeros((), device=self._device.torch), 0
        self.model.eval()
        with torch.no_grad(), self._engine.autocast(), without_trying():  # the last batch of a share is of a size of its own
            for samples, labels in held_out:
                right += (self.model(samples).argmax(1) == labels).sum()
                seen += len(labels)
        self.model.train()
        return float(right), seen

    def round(self, steps: int, drain_s: float = inf) -> Trace:
        """One timed round, which begins when what was prefetched during the pause is trained away, off the clock.

        That begins no other portion after ``drain_s`` seconds, and not at all where they are 0: a new training has no pause behind it.
        """
        health, cores = HealthWatch(self._device.gpu, self._ranks_on_this_gpu()), CoreWatch()
        with _collector_frozen():
            if drain_s:
                self._drain(drain_s)
            retries, before = self._device.allocator_retries(), self._digest()
            self._device.reset_peaks()  # after the checksum, which takes as much memory as the largest parameter, twice
            busy_s = self._cpu_seconds()
            loaded_before = self._loader.loading()
            cores.start()
            health.start()  # NVML takes milliseconds, not the same on every rank: before the barrier
            try:
                self._world.barrier()
                begin, thread_began_s = perf_counter(), thread_time()
                self._train(steps)
                self._device.synchronize()
                wall_s, thread_s = perf_counter() - begin, thread_time() - thread_began_s
            finally:
                seen = health.finish()  # whose thread would look on at what comes after a step that broke off
            used = cores.finish()
            busy_s = self._cpu_seconds() - busy_s
        self._pulse.enter("reading the round")
        loading, phases_ms = self._loader.loading(), self._clock.phases_ms()
        return Trace(
            rank=self._world.rank,
            steps=steps,
            images=steps * (self.config.batch_size or 0),
            wall_s=wall_s,
            phases_ms=phases_ms,
            host_data_ms=self._clock.host_data_ms(),
            lead_ms=self._clock.lead_ms(),
            issuing_ms=self._clock.issuing_ms(phases_ms),
            cpu_s=busy_s,
            thread_cpu_s=thread_s,
            memory=self._device.memory(self._loader.worker_pids(), retries, self._workspace_bytes),
            numerics=self._ledger.close(self.loss_scale(), before, self._digest()),
            health=seen,
            loading=loading and loading.after(loaded_before),
            cores=used,
        )

    def _drain(self, limit_s: float) -> None:
        """Trains as many steps as batches can be ready, again and again until one waited for data, which is looked at in portions.

        A loader a little slower than the device lives on its stock for many steps, and looks fast until that is gone. One
        that never made a step wait before the first round is ahead of the device: later rounds drain it once.
        """
        end = perf_counter() + limit_s
        stock = self._loader.in_flight + 1
        left, portion = stock if self._ahead or stock == 1 else MOST_DRAINS * stock, -(-stock // DRAIN_PORTIONS)
        while left > 0:
            begin = perf_counter()
            self._train(portion)
            self._device.synchronize()
            step_ms = (perf_counter() - begin) / portion * 1e3
            if self._world.most(max(self._clock.host_data_ms()) / step_ms) > WAITED:
                return
            left -= portion
            if limit_s < inf and self._world.most(perf_counter() - end) > 0:
                return
        self._ahead = True

    def loss_scale(self) -> float | None:
        """The scaler's factor, or ``None`` without one."""
        scale = self._engine.scaler_state().get("scale")
        return None if scale is None else float(scale)

    def bucket_bytes(self) -> list[int]:
        """The sizes of DDP's buckets; none without DDP."""
        return bucket_bytes(self._engine.model)

    def steps_untimed(self, steps: int) -> None:
        """Trains off the clock, for a profiler to look at."""
        self._train(steps)
        self._device.synchronize()

    def close(self) -> Parked | None:
        """Frees the device and gives back the training as it stands, on the host; None where each round begins anew."""
        parked = None if self.config.fresh else self.parked()
        self._loader.close()
        self.discard()
        return parked

    def parked(self) -> Parked:
        """A copy on the host of the training as it stands."""
        kept = on_host(self.model.state_dict()), on_host(self._optimizer.state_dict())
        return Parked(*kept, self._engine.scaler_state(), self._schedule.update)

    def discard(self) -> None:
        """Lets go of everything on the device."""
        for name in ("model", "_engine", "_optimizer", "_ledger", "_schedule", "_clock", "_loader"):
            self.__dict__.pop(name, None)
        if self._compiled:
            torch._dynamo.reset()  # or the next arm's shapes count as changes of this one's, and compile as dynamic
        gc.collect()
        self._device.release()

    def _train(self, steps: int) -> None:
        self.steps_trained += steps
        self._ledger.open()
        train(steps, self._loader, self._engine, self._loss_of, self._clock, self._ledger)

    def _window_s(self, steps: int) -> float:
        """Seconds for ``steps`` steps, of the slowest rank."""
        self._world.barrier()
        begin = perf_counter()
        self._train(steps)
        self._device.synchronize()
        return self._world.most(perf_counter() - begin)

    def _digest(self) -> int:
        """The checksum of what the optimizer updates: master weights, where there are any, move before their roundings do."""
        return digest(parameter for group in self._optimizer.param_groups for parameter in group["params"])

    def _cpu_seconds(self) -> float:
        """CPU time of this rank and its loader workers so far."""
        return cpu_seconds([os.getpid(), *self._loader.worker_pids()])

    def _ranks_on_this_gpu(self) -> int:
        return sum(place.device_id == self._device.id for place in self._world.places)

    def _optimizer_name(self) -> str:
        settings = self._optimizer.defaults
        return f"{type(self._optimizer).__name__} {next((name for name in ('fused', 'foreach') if settings.get(name)), 'loop')}"


@contextmanager
def _collector_frozen() -> Iterator[None]:
    """Python's garbage collector does not run: its pauses would be charged to whatever phase they hit."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
