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
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import ObservedPrecision
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.trace import Trace
from ddpbench.training.compile import compile_model, free_compiled
from ddpbench.training.compile_cache import count_triton_lookups
from ddpbench.training.drain import PrefetchDrainer
from ddpbench.training.engines import bucket_bytes, make_engine
from ddpbench.training.loop import TimedModel, train
from ddpbench.training.loss_tracker import LossTracker, parameter_checksum
from ddpbench.training.optimizer import LRSchedule, implementation_of, make_optimizer, reset_state
from ddpbench.training.precision import BatchNorm, StepObservation, cast_model, check_precision_supported, observe_precision


def prepare_model(model: nn.Module, config: ResolvedConfig, device: Device) -> nn.Module:
    """``model`` on the device, in the configured dtypes and memory layout, with fused kernels if configured."""
    model = cast_model(model.to(device.torch_device).train(), PRECISIONS[config.precision])
    if config.runs_fused_kernels(device.is_cuda):
        fuse_kernels(model, config.workload)
    return model.to(memory_format=torch.channels_last) if config.channels_last else model


def fuse_kernels(model: nn.Module, workload: str) -> None:
    """Give ``model`` the fused kernels. Raises UsageError if none of its BatchNorms can be fused."""
    from ddpbench.kernels.fusion import HAS_TRITON, fuse_norms  # Triton, which it imports, takes a second

    if HAS_TRITON:
        count_triton_lookups()

    norms = sum(isinstance(module, BatchNorm) for module in model.modules())
    left_out = fuse_norms(model)
    if len(left_out) == norms:
        reason = next(iter(left_out.values()), "it has no BatchNorm")
        raise UsageError(f"--fused-kernels cannot fuse anything in {workload}: {reason}", "use --no-fused-kernels")


class Session:
    """A training that occupies the device from construction until ``close``."""

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
        configure_backends(spec.tf32, config.cudnn_benchmark_limit)
        torch.manual_seed(config.seed)

        self.model = prepare_model(model, config, self._device)
        self.compiled = config.compile != "off"
        self.timer = make_step_timer(marker, self._device.torch_device)
        self._optimizer = make_optimizer(self.model, config)
        is_resident = loader.data.loader == SYNTHETIC and loader.data.num_batches == 1
        is_in_ddp = config.uses_ddp(world.is_distributed, world.size)
        timed_model = TimedModel(compile_model(self.model, config, is_in_ddp), self.timer)
        self.engine = make_engine(timed_model, self._optimizer, config, spec, world, self.timer, is_resident)
        if offloaded:
            self.load(offloaded)
        self._schedule = LRSchedule(self._optimizer, config)
        self._loss_tracker = LossTracker(config.log_loss)
        self.loss_fn = loss_fn
        self._loader = loader
        self._workspace_bytes: int | None = None
        self.steps_trained = 0
        self._drainer = PrefetchDrainer(world)

    def reset(self, weights: Mapping[str, Any], open_loader: Callable[[], Loader]) -> None:
        """Start a new training on the same engine.

        It has the given weights, no momentum, the initial loss scale, and a new loader at its first batch. The old loader is closed
        before ``open_loader`` is called: two loaders would need twice the shared memory, cores and device memory.
        """
        self._loader.close()
        self._loader = open_loader()
        self.model.load_state_dict(weights)
        reset_state(self._optimizer)
        self.engine.reset()

    def load(self, offloaded: OffloadedState) -> None:
        """Replace this training with an offloaded one.

        The position of its schedule is restored by ``set_schedule_length``.
        """
        self.model.load_state_dict(offloaded.model)
        self._optimizer.load_state_dict(dict(offloaded.optimizer))
        self.engine.load_scaler_state(offloaded.scaler)

    def set_schedule_length(self, steps: int, steps_per_epoch: int, updates_done: int = 0) -> None:
        """Set the training's length in updates for the schedule, and how many are done."""
        self._schedule.set_length(steps, steps_per_epoch, updates_done)

    @property
    def updates_done(self) -> int:
        """Updates of the schedule that are done."""
        return self._schedule.updates_done

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The loader's next batch, which no step trains on."""
        return self._loader.next_batch(lambda: None)

    def train(self, steps: int) -> float:
        """Train ``steps`` steps and wait for the device; returns the seconds."""
        start_s = perf_counter()
        self.steps_trained += steps
        self._loss_tracker.reset()
        train(steps, self._loader, self.engine, self.loss_fn, self.timer, self._loss_tracker)
        self.marker.enter("waiting for the device")
        self._device.synchronize()
        return perf_counter() - start_s

    def run_round(self, steps: int, max_drain_s: float = inf, during: AbstractContextManager[None] | None = None) -> Trace:
        """Run one timed round.

        Before it, the batches prefetched during the pause are drained, untimed. No new portion of the drain begins after ``max_drain_s``
        seconds; 0 skips the drain, because a new training has no pause before it. ``during`` is entered just before the timed steps.
        """
        health, cpu_monitor = GpuTelemetry(self._device.gpu, self._ranks_on_this_gpu()), CpuMonitor()
        with gc_disabled():
            if max_drain_s:
                with self._schedule.paused():
                    self._drainer.drain_prefetch(self.train, self.timer, self._loader.max_prefetched, max_drain_s)
            retries, checksum_before = self._device.allocator_retries(), self._parameter_checksum()
            self._device.reset_peak_memory_stats()  # after the checksum, which needs twice the memory of the largest parameter
            busy_s = self._cpu_seconds()
            previous_stats = self._loader.pop_stats()
            cpu_monitor.start()
            health.start()  # before the barrier: NVML takes milliseconds, which vary between ranks
            try:
                with during or nullcontext():
                    self.world.barrier()
                    thread_began_s = thread_time()
                    wall_s = self.train(steps)
                    thread_s = thread_time() - thread_began_s
            finally:
                health_stats = health.finish()  # also after a failed step, or its thread would continue sampling
            cpu_usage = cpu_monitor.finish()
            busy_s = self._cpu_seconds() - busy_s
        self.marker.enter("reading the round")
        loader_stats, timings = self._loader.pop_stats(), self.timer.read()
        return Trace(
            rank=self.world.rank,
            steps=steps,
            samples=steps * self.config.batch_size,
            wall_s=wall_s,
            phases_ms=timings.phases_ms,
            host_data_ms=timings.host_data_ms,
            host_lead_ms=timings.host_lead_ms,
            host_issue_ms=timings.host_issue_ms,
            cpu_s=busy_s,
            thread_cpu_s=thread_s,
            memory=self._device.memory_stats(self._loader.worker_pids(), retries, self._workspace_bytes, self.engine.peak_bytes),
            numerics=self._loss_tracker.finish(self.loss_scale(), checksum_before, self._parameter_checksum()),
            health=health_stats,
            loader_stats=loader_stats and loader_stats.prepend_skipped_files(previous_stats),
            cpu_usage=cpu_usage,
        )

    def loss_scale(self) -> float | None:
        """The current loss scale; None without a scaler."""
        scale = self.engine.scaler_state().get("scale")
        return None if scale is None else float(scale)

    def bucket_bytes(self) -> list[int]:
        """Sizes of DDP's buckets in bytes; empty without DDP."""
        return bucket_bytes(self.engine.model)

    def measure_workspaces(self) -> None:
        """Free the cuBLAS workspaces and record their size.

        The memory stats of all later rounds include it. The next step allocates them again. CUDA graphs, which a compiled model may have,
        become invalid.
        """
        self._workspace_bytes = self._device.free_cublas_workspaces()

    def observe_precision(self, seen: StepObservation) -> ObservedPrecision:
        """The precision that runs, of which one step has shown ``seen``."""
        optimizer = f"{type(self._optimizer).__name__} {implementation_of(self._optimizer)}"
        return observe_precision(self.model, seen, optimizer, self.loss_scale(), self.engine.master_dtype)

    def close(self) -> OffloadedState | None:
        """Free the device and return the training's state on the host.

        Returns None if every round trains from scratch.
        """
        offloaded = None
        if not self.config.fresh:
            states = to_cpu(self.model.state_dict()), to_cpu(self._optimizer.state_dict())
            offloaded = OffloadedState(*states, self.engine.scaler_state(), self.updates_done)
        self._loader.close()
        self.release_device()
        return offloaded

    def release_device(self) -> None:
        """Drop all references to objects on the device."""
        del self.model, self.engine, self.timer, self._optimizer, self._loss_tracker, self._schedule, self._loader
        free_compiled(self.config)
        gc.collect()
        self._device.empty_cache()

    def _parameter_checksum(self) -> int:
        """Checksum of what the optimizer updates.

        Master weights, if any, change before their rounded parameters do.
        """
        return parameter_checksum(parameter for group in self._optimizer.param_groups for parameter in group["params"])

    def _cpu_seconds(self) -> float:
        """CPU time of this rank and its loader workers so far."""
        return cpu_seconds([os.getpid(), *self._loader.worker_pids()])

    def _ranks_on_this_gpu(self) -> int:
        return sum(place.device_id == self._device.uuid for place in self.world.placements)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable Python's garbage collector: its pauses would be charged to an arbitrary phase."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class OffloadedState:
    """State of a training on the host, so that it uses no device memory while another arm runs."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    updates_done: int  # updates of the schedule that are done


def to_cpu(state: Any) -> Any:
    """A copy of ``state`` with all its tensors in host memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: to_cpu(value) for key, value in state.items()}
    return [to_cpu(value) for value in state] if isinstance(state, list) else state
