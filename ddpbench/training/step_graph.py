"""The training step as a CUDA graph, which the host launches with one call instead of one per kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddpbench.distributed.collectives import all_ranks_or_fail, guard_oom
from ddpbench.distributed.world import World
from ddpbench.machine.step_timer import BACKWARD, BROADCAST, FORWARD, HOST_TO_DEVICE, OPTIMIZER, SYNC, StepTimer
from ddpbench.record.errors import BenchError, ConfigFailed
from ddpbench.training.loss_tracker import IsSkipped
from ddpbench.training.step import Engine, LossFn

EAGER_STEPS = 11
"""Steps before the capture. DDP needs as many: in the first ones it rebuilds its buckets and collects statistics."""


@dataclass(frozen=True)
class StepGraph:
    """The graph of a step, the tensors that it reads, and those that it writes."""

    images: Tensor
    labels: Tensor
    loss: Tensor
    is_skipped: IsSkipped
    graph: torch.cuda.CUDAGraph
    peak_bytes: int  # of device memory during the capture: replays allocate none

    @classmethod
    def capture(
        cls, engine: Engine, stream: torch.cuda.Stream, images: Tensor, labels: Tensor, loss_fn: LossFn, timer: StepTimer
    ) -> StepGraph:
        """Capture a step that reads ``images`` and ``labels``, with marks of ``timer``. Nothing runs.

        Raises:
            BenchError: Something in the step cannot be captured.
        """
        pool, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        # other threads, such as NCCL's watchdog, may call CUDA meanwhile
        capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        torch.cuda.reset_peak_memory_stats(stream.device)
        try:
            with torch.cuda.stream(stream), capture:  # a failed capture does not leave the stream
                timer.mark(HOST_TO_DEVICE)
                loss = engine.forward(images, labels, loss_fn)
                timer.mark(FORWARD)
                engine.backward(loss)
                timer.mark(SYNC)
                is_skipped = engine.update()
                timer.mark(OPTIMIZER)
        except Exception as problem:
            _end_failed_capture(stream.device, pool)
            cause = _first_cause(problem)
            if "out of memory" in str(cause):
                raise torch.OutOfMemoryError(str(cause)) from problem
            reason = str(cause).partition("\n")[0]
            raise BenchError(f"--cuda-graph cannot capture this step: {reason}") from problem
        return cls(images, labels, loss.detach(), is_skipped, graph, torch.cuda.max_memory_allocated(stream.device))


def _end_failed_capture(device: torch.device, pool: tuple[int, int]) -> None:
    """End what torch 2.11 leaves begun: it would never free memory of the graph or of two streams, and random numbers would fail."""
    with suppress(RuntimeError):  # it was not begun, or has ended
        torch._C._cuda_endAllocateToPool(device.index, pool)  # no public API
        torch._C._cuda_releasePool(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())


def _first_cause(problem: BaseException) -> BaseException:
    """The error of CUDA that came first: later ones say that the capture has failed."""
    while isinstance(problem.__context__, RuntimeError):
        problem = problem.__context__
    return problem


class GraphedEngine:
    """Replays the steps of an eager engine.

    The engine is built on the stream of the capture, as DDP must be, and its first steps run there, whose phases are not timed rightly.
    Batches are copied into the tensors that the graph reads. The only batch of a loader (``is_resident``) is read itself.
    """

    warmup_steps = EAGER_STEPS  # after the first step: the last of them captures

    def __init__(self, build: Callable[[], Engine], timer: StepTimer, world: World, is_resident: bool) -> None:
        self._is_resident = is_resident
        self._timer, self._world, self._device = timer, world, world.device.torch_device
        self._stream = torch.cuda.Stream(self._device)
        with self._on_capture_stream():
            self._eager = build()
        self.model, self.master_dtype = self._eager.model, self._eager.master_dtype
        self._steps = 0
        self._graph: StepGraph | None = None

    @contextmanager
    def _on_capture_stream(self) -> Iterator[None]:
        """Run there, in order with the current stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    @property
    def peak_bytes(self) -> int:
        """Peak of device memory in a step."""
        return self._graph.peak_bytes if self._graph else 0

    def autocast(self) -> AbstractContextManager[Any]:
        return self._eager.autocast()

    def forward(self, images: Tensor, labels: Tensor, loss_fn: LossFn) -> Tensor:
        """The loss of a batch. The call after EAGER_STEPS steps captures the step, and replays it as a whole, as later calls do.

        Raises:
            ConfigFailed: Something in the step cannot be captured; on every rank if on one.
            OutOfMemory: A graph does not fit; likewise.
        """
        self._steps += 1
        if self._steps <= EAGER_STEPS:
            with self._on_capture_stream():
                return self._eager.forward(images, labels, loss_fn)
        if self._graph is None:
            batch = (images, labels) if self._is_resident else (images.clone(), labels.clone())
            self._graph = self._capture(*batch, loss_fn)
        self._timer.mark(BROADCAST)
        for read, given in ((self._graph.images, images), (self._graph.labels, labels)):
            if given is not read:
                read.copy_(given)
        self._graph.graph.replay()
        return self._graph.loss.clone()

    def _capture(self, images: Tensor, labels: Tensor, loss_fn: LossFn) -> StepGraph:
        """The graph of a step that reads this batch, on all ranks or on none."""

        def attempt() -> StepGraph | BenchError:
            try:
                return StepGraph.capture(self._eager, self._stream, images, labels, loss_fn, self._timer)
            except BenchError as problem:
                return problem

        def checked() -> StepGraph:
            if isinstance(attempted, BenchError):
                raise attempted
            return attempted

        attempted = guard_oom(self._world, "during the capture of CUDA graphs", attempt)
        return all_ranks_or_fail(
            self._world, checked, str, lambda reason: ConfigFailed(reason or "another rank failed", "use --no-cuda-graph")
        )

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, unless ``forward`` has replayed the whole step."""
        if self._graph is None:
            with self._on_capture_stream():
                self._eager.backward(loss)
        else:
            self._timer.mark(BACKWARD)

    def update(self) -> IsSkipped:
        if self._graph is None:
            with self._on_capture_stream():
                return self._eager.update()
        is_skipped = self._graph.is_skipped
        return is_skipped.clone() if isinstance(is_skipped, Tensor) else is_skipped

    def scaler_state(self) -> dict[str, Any]:
        return self._eager.scaler_state()

    def load_scaler_state(self, state: Mapping[str, Any]) -> None:
        self._eager.load_scaler_state(state)

    def reset(self) -> None:
        self._eager.reset()
