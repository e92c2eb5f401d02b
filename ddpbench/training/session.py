"""A training on the device: timed in rounds, then offloaded to the host."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import nn

from ddpbench.data.loader import Loader
from ddpbench.distributed.world import World
from ddpbench.machine.backends import configure_backends
from ddpbench.machine.cpu import CpuMonitor
from ddpbench.machine.device import Device
from ddpbench.machine.gpu import GpuTelemetry
from ddpbench.machine.host import cpu_seconds
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.machine.step_timer import make_step_timer
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import ObservedPrecision
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.trace import Trace
from ddpbench.training.drain import PrefetchDrainer
from ddpbench.training.engines import bucket_bytes, make_engine
from ddpbench.training.loop import TimedModel, train
from ddpbench.training.loss_tracker import LossTracker, parameter_checksum
from ddpbench.training.optimizer import LRSchedule, make_optimizer, reset_state
from ddpbench.training.precision import StepObservation, cast_model, check_precision_supported, observe_precision


def compile_model(model: nn.Module, config: ResolvedConfig) -> nn.Module:
    """What runs ``model``, which is on the device: itself, unless it is to be compiled.

    Convolutions stay with cuDNN: inductor's Triton ones read another TF32 switch, and take minutes to tune.
    """
    if config.compile == "off":
        return model
    from torch._inductor import list_mode_options  # importing it takes more than a second

    options = {**list_mode_options(config.compile), "max_autotune_conv_backends": "ATEN"}  # torch takes a mode or options, not both
    return torch.compile(model, options=options)  # type: ignore[return-value]


def prepare_model(model: nn.Module, config: ResolvedConfig, device: Device) -> nn.Module:
    """``model`` on the device, in the dtypes and the memory layout asked for."""
    model = cast_model(model.to(device.torch_device).train(), PRECISIONS[config.precision])
    return model.to(memory_format=torch.channels_last) if config.channels_last else model


class Session:
    """A training that is live on the device, from its construction until ``close``."""

    def __init__(
        self,
        config: ResolvedConfig,
        model: nn.Module,
        loss_fn: nn.Module,
        loader: Loader,
        world: World,
        marker: ProgressMarker,
        offloaded: OffloadedState | None = None,
    ) -> None:
        self.config = config
        self.world, self.marker, self._device = world, marker, world.device
        spec = PRECISIONS[config.precision]
        check_precision_supported(spec, self._device, config.engine, config.static_loss_scale)
        configure_backends(spec.tf32)
        torch.manual_seed(config.seed)

        self.model = prepare_model(model, config, self._device)
        self.compiled = config.compile != "off"
        self.timer = make_step_timer(marker, self._device.torch_device)
        self._optimizer = make_optimizer(self.model, config)
        self.engine = make_engine(TimedModel(compile_model(self.model, config), self.timer), self._optimizer, config, spec, world)
        if offloaded:
            self.load(offloaded)
        self._schedule = LRSchedule(self._optimizer, config)
        self._loss_tracker = LossTracker(self._optimizer, config.log_loss)
        self._loss_fn = loss_fn
        self._loader = loader
        self._workspace_bytes: int | None = None
        self.steps_trained = 0
        self._drainer = PrefetchDrainer(world)

    def reset(self, weights: Mapping[str, Any], open_loader: Callable[[], Loader]) -> None:
        """A new training on the same engine: other weights, no momentum, another loader's first batch, the loss scale as it begins.

        That loader is opened when the one before it is closed: two would take shared memory, cores and a device twice.
        """
        self._loader.close()
        self._loader = open_loader()
        self.model.load_state_dict(weights)
        reset_state(self._optimizer)
        self.engine.reset()

    def load(self, offloaded: OffloadedState) -> None:
        """The training that was parked, in place of this one; where its schedule stood is for ``plan``."""
        self.model.load_state_dict(offloaded.model)
        self._optimizer.load_state_dict(dict(offloaded.optimizer))
        self.engine.load_scaler_state(offloaded.scaler)

    def set_schedule_length(self, steps: int, steps_per_epoch: int, updates_done: int = 0) -> None:
        """Tells the schedule how long the training is, and how many of its updates are done."""
        self._schedule.set_length(steps, steps_per_epoch, updates_done)

    @property
    def updates_done(self) -> int:
        """Where its schedule stands: how many of its updates are done."""
        return self._schedule.updates_done

    def train(self, steps: int) -> float:
        """Trains so many steps, to their end on the device; returns the seconds that they took."""
        begin = perf_counter()
        self.steps_trained += steps
        self._loss_tracker.reset()
        train(steps, self._loader, self.engine, self._loss_fn, self.timer, self._loss_tracker)
        self._device.synchronize()
        return perf_counter() - begin

    def run_round(self, steps: int, max_drain_s: float = inf, during: AbstractContextManager[None] | None = None) -> Trace:
        """One timed round, which begins when what was prefetched during the pause is trained away, off the clock.

        That begins no other portion after ``max_drain_s`` seconds, and not at all where they are 0: a new training has no pause behind it.
        ``during`` is entered just before the timed steps.
        """
        health, cores = GpuTelemetry(self._device.gpu, self._ranks_on_this_gpu()), CpuMonitor()
        with gc_disabled():
            if max_drain_s:
                with self._schedule.paused():
                    self._drainer.drain_prefetch(self.train, self.timer, self._loader.max_prefetched, max_drain_s)
            retries, before = self._device.allocator_retries(), self._parameter_checksum()
            self._device.reset_peak_memory_stats()  # after the checksum, which takes as much memory as the largest parameter, twice
            busy_s = self._cpu_seconds()
            loaded_before = self._loader.pop_stats()
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
        self.marker.enter("reading the round")
        loading, reading = self._loader.pop_stats(), self.timer.read()
        return Trace(
            rank=self.world.rank,
            steps=steps,
            images=steps * self.config.batch_size,
            wall_s=wall_s,
            phases_ms=reading.phases_ms,
            host_data_ms=reading.host_data_ms,
            host_lead_ms=reading.host_lead_ms,
            host_issue_ms=reading.host_issue_ms,
            cpu_s=busy_s,
            thread_cpu_s=thread_s,
            memory=self._device.memory_stats(self._loader.worker_pids(), retries, self._workspace_bytes),
            numerics=self._loss_tracker.finish(self.loss_scale(), before, self._parameter_checksum()),
            health=seen,
            loader_stats=loading and loading.prepend_skipped_files(loaded_before),
            cpu_usage=used,
        )

    def loss_scale(self) -> float | None:
        """The scaler's factor, or ``None`` without one."""
        scale = self.engine.scaler_state().get("scale")
        return None if scale is None else float(scale)

    def bucket_bytes(self) -> list[int]:
        """The sizes of DDP's buckets; none without DDP."""
        return bucket_bytes(self.engine.model)

    def measure_workspaces(self) -> None:
        """Frees what the matrix libraries hold, of which every round from now on tells the bytes; the next step takes it anew.

        CUDA graphs, which a compiled model may have, do not survive it.
        """
        self._workspace_bytes = self._device.free_cublas_workspaces()

    def observe_precision(self, seen: StepObservation) -> ObservedPrecision:
        """What runs, of which one step has shown ``seen``."""
        settings = self._optimizer.defaults
        implementation = next((name for name in ("fused", "foreach") if settings.get(name)), "loop")
        optimizer = f"{type(self._optimizer).__name__} {implementation}"
        return observe_precision(self.model, seen, optimizer, self.loss_scale(), self.engine.master_dtype)

    def close(self) -> OffloadedState | None:
        """Frees the device and gives back the training as it stands, on the host; None where each round begins anew."""
        parked = None
        if not self.config.fresh:
            kept = to_cpu(self.model.state_dict()), to_cpu(self._optimizer.state_dict())
            parked = OffloadedState(*kept, self.engine.scaler_state(), self.updates_done)
        self._loader.close()
        self.release_device()
        return parked

    def release_device(self) -> None:
        """Lets go of everything on the device."""
        del self.model, self.engine, self.timer, self._optimizer, self._loss_tracker, self._schedule, self._loader
        if self.compiled:
            torch._dynamo.reset()  # or the next arm's shapes count as changes of this one's, and compile as dynamic
        gc.collect()
        self._device.empty_cache()

    def _parameter_checksum(self) -> int:
        """The checksum of what the optimizer updates: master weights, where there are any, move before their roundings do."""
        return parameter_checksum(parameter for group in self._optimizer.param_groups for parameter in group["params"])

    def _cpu_seconds(self) -> float:
        """CPU time of this rank and its loader workers so far."""
        return cpu_seconds([os.getpid(), *self._loader.worker_pids()])

    def _ranks_on_this_gpu(self) -> int:
        return sum(place.device_id == self._device.uuid for place in self.world.placements)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Python's garbage collector does not run: its pauses would be charged to whatever phase they hit."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class OffloadedState:
    """A training laid aside on the host, so that it holds nothing on the device while another arm runs."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    updates_done: int  # where its schedule stands


def to_cpu(state: Any) -> Any:
    """A copy of ``state``, whatever tensors it holds, in host memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: to_cpu(value) for key, value in state.items()}
    return [to_cpu(value) for value in state] if isinstance(state, list) else state
