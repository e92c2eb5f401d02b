"""One arm on the device: model, optimizer, engine, loader; timed in rounds, then parked on the host."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from time import perf_counter, thread_time
from typing import Any, Protocol

import torch
from torch import nn

from ddpbench.distributed.world import World
from ddpbench.machine.backends import set_for_training
from ddpbench.machine.cpu_usage import CoreWatch
from ddpbench.machine.gpu import HealthWatch
from ddpbench.machine.host import cpu_seconds
from ddpbench.machine.progress_marker import Pulse
from ddpbench.machine.step_timer import open_clock
from ddpbench.record.loader_stats import Loading
from ddpbench.record.record import Attestation
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.resolved import Settled
from ddpbench.record.trace import Trace
from ddpbench.training.drain import Drain
from ddpbench.training.engines import bucket_bytes, make_engine
from ddpbench.training.loop import Batches, Marked, train
from ddpbench.training.loss_tracker import Ledger, digest
from ddpbench.training.offload import Parked, on_host
from ddpbench.training.optimizer import forget, make_optimizer
from ddpbench.training.precision import Observation, attest, refuse_impossible
from ddpbench.training.prepare_model import compiled, on_device
from ddpbench.training.schedule import Schedule


class Loader(Batches, Protocol):
    """What a session asks of a loader beside batches."""

    in_flight: int  # most batches that can be ready after a pause

    def loading(self) -> Loading | None: ...

    def worker_pids(self) -> list[int]: ...

    def close(self) -> None: ...


class Session:
    """A training that is live on the device, from its construction until ``close``."""

    def __init__(
        self,
        config: Settled,
        model: nn.Module,
        loss_of: nn.Module,
        loader: Loader,
        world: World,
        pulse: Pulse,
        parked: Parked | None = None,
    ) -> None:
        self.config = config
        self.world, self.pulse, self._device = world, pulse, world.device
        spec = PRECISIONS[config.precision]
        refuse_impossible(spec, self._device, config.engine, config.static_loss_scale)
        set_for_training(spec.tf32)
        torch.manual_seed(config.seed)

        self.model = on_device(model, config, self._device)
        self.compiled = config.compile != "off"
        self.clock = open_clock(pulse, self._device.torch)
        self._optimizer = make_optimizer(self.model, config)
        self.engine = make_engine(Marked(compiled(self.model, config), self.clock), self._optimizer, config, spec, world)
        if parked:
            self.go_on_from(parked)
        self._schedule = Schedule(self._optimizer, config)
        self._ledger = Ledger(self._optimizer, config.log_loss)
        self._loss_of = loss_of
        self._loader = loader
        self._workspace_bytes: int | None = None
        self.steps_trained = 0
        self._drain = Drain(world)

    def start_over(self, weights: Mapping[str, Any], open_loader: Callable[[], Loader]) -> None:
        """A new training on the same engine: other weights, no momentum, another loader's first batch, the loss scale as it begins.

        That loader is opened when the one before it is closed: two would take shared memory, cores and a device twice.
        """
        self._loader.close()
        self._loader = open_loader()
        self.model.load_state_dict(weights)
        forget(self._optimizer)
        self.engine.start_over()

    def go_on_from(self, parked: Parked) -> None:
        """The training that was parked, in place of this one; where its schedule stood is for ``plan``."""
        self.model.load_state_dict(parked.model)
        self._optimizer.load_state_dict(dict(parked.optimizer))
        self.engine.load_scaler_state(parked.scaler)

    def plan(self, steps: int, steps_an_epoch: int, done: int = 0) -> None:
        """Tells the schedule how long the training is, and how many of its updates are done."""
        self._schedule.plan(steps, steps_an_epoch, done)

    @property
    def update(self) -> int:
        """Where its schedule stands: how many of its updates are done."""
        return self._schedule.update

    def train(self, steps: int) -> float:
        """Trains so many steps, to their end on the device; returns the seconds that they took."""
        begin = perf_counter()
        self.steps_trained += steps
        self._ledger.open()
        train(steps, self._loader, self.engine, self._loss_of, self.clock, self._ledger)
        self._device.synchronize()
        return perf_counter() - begin

    def round(self, steps: int, drain_s: float = inf, during: AbstractContextManager[None] | None = None) -> Trace:
        """One timed round, which begins when what was prefetched during the pause is trained away, off the clock.

        That begins no other portion after ``drain_s`` seconds, and not at all where they are 0: a new training has no pause behind it.
        ``during`` is entered just before the timed steps.
        """
        health, cores = HealthWatch(self._device.gpu, self._ranks_on_this_gpu()), CoreWatch()
        with _collector_frozen():
            if drain_s:
                with self._schedule.held():
                    self._drain.run(self.train, self.clock, self._loader.in_flight, drain_s)
            retries, before = self._device.allocator_retries(), self._digest()
            self._device.reset_peaks()  # after the checksum, which takes as much memory as the largest parameter, twice
            busy_s = self._cpu_seconds()
            loaded_before = self._loader.loading()
            cores.start()
            health.start()  # NVML takes milliseconds, not the same on every rank: before the barrier
            try:
                with during or nullcontext():
                    self.world.barrier()
                    thread_began_s = thread_time()
                    wall_s = self.train(steps)
                    thread_s = thread_time() - thread_began_s
            finally:
                seen = health.finish()  # whose thread would look on at what comes after a step that broke off
            used = cores.finish()
            busy_s = self._cpu_seconds() - busy_s
        self.pulse.enter("reading the round")
        loading, reading = self._loader.loading(), self.clock.read()
        return Trace(
            rank=self.world.rank,
            steps=steps,
            images=steps * self.config.batch_size,
            wall_s=wall_s,
            phases_ms=reading.phases_ms,
            host_data_ms=reading.host_data_ms,
            lead_ms=reading.lead_ms,
            issuing_ms=reading.issuing_ms,
            cpu_s=busy_s,
            thread_cpu_s=thread_s,
            memory=self._device.memory(self._loader.worker_pids(), retries, self._workspace_bytes),
            numerics=self._ledger.close(self.loss_scale(), before, self._digest()),
            health=seen,
            loading=loading and loading.after(loaded_before),
            cores=used,
        )

    def loss_scale(self) -> float | None:
        """The scaler's factor, or ``None`` without one."""
        scale = self.engine.scaler_state().get("scale")
        return None if scale is None else float(scale)

    def bucket_bytes(self) -> list[int]:
        """The sizes of DDP's buckets; none without DDP."""
        return bucket_bytes(self.engine.model)

    def weigh_workspaces(self) -> None:
        """Frees what the matrix libraries hold, of which every round from now on tells the bytes; the next step takes it anew.

        CUDA graphs, which a compiled model may have, do not survive it.
        """
        self._workspace_bytes = self._device.free_workspaces()

    def attest(self, seen: Observation) -> Attestation:
        """What runs, of which one step has shown ``seen``."""
        settings = self._optimizer.defaults
        implementation = next((name for name in ("fused", "foreach") if settings.get(name)), "loop")
        optimizer = f"{type(self._optimizer).__name__} {implementation}"
        return attest(self.model, seen, optimizer, self.loss_scale(), self.engine.master)

    def close(self) -> Parked | None:
        """Frees the device and gives back the training as it stands, on the host; None where each round begins anew."""
        parked = None
        if not self.config.fresh:
            kept = on_host(self.model.state_dict()), on_host(self._optimizer.state_dict())
            parked = Parked(*kept, self.engine.scaler_state(), self.update)
        self._loader.close()
        self.discard()
        return parked

    def discard(self) -> None:
        """Lets go of everything on the device."""
        del self.model, self.engine, self.clock, self._optimizer, self._ledger, self._schedule, self._loader
        if self.compiled:
            torch._dynamo.reset()  # or the next arm's shapes count as changes of this one's, and compile as dynamic
        gc.collect()
        self._device.release()

    def _digest(self) -> int:
        """The checksum of what the optimizer updates: master weights, where there are any, move before their roundings do."""
        return digest(parameter for group in self._optimizer.param_groups for parameter in group["params"])

    def _cpu_seconds(self) -> float:
        """CPU time of this rank and its loader workers so far."""
        return cpu_seconds([os.getpid(), *self._loader.worker_pids()])

    def _ranks_on_this_gpu(self) -> int:
        return sum(place.device_id == self._device.id for place in self.world.places)


@contextmanager
def _collector_frozen() -> Iterator[None]:
    """Python's garbage collector does not run: its pauses would be charged to whatever phase they hit."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
