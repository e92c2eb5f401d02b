"""Work and time of a training step, layer by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddpbench.record.roofline import LayerWork, Work
from ddpbench.training.layer_tracker import GRADIENTS, OPTIMIZER, OTHER, RANGE, LayerTracker
from ddpbench.training.operator_work import operator_bytes, operator_flops
from ddpbench.training.profiler import NON_COMPUTE, PROFILED_STEPS, silence_kineto
from ddpbench.training.session import Session

LOSS = "(loss)"

AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
"""Prefix of the profiler's event of one node in the backward pass."""

OPERATOR_NAMESPACES = ("aten::", "ddpbench::")

Place = tuple[str, bool]
"""Name of a layer, and whether it is its backward pass."""


@dataclass
class Counted:
    """FLOPs, bytes and kernels of one place."""

    flops: float = 0.0
    num_bytes: float = 0.0
    operators: int = 0


@dataclass
class Timed:
    """Kernels of one place and their milliseconds; on a CPU only the milliseconds of operators."""

    ms: float = 0.0
    kernels: int = 0


def measure_layers(session: Session) -> list[LayerWork]:
    """Work and time of every layer in a step of this rank, in the order of ``named_modules``; empty if the profiler saw no kernel.

    Trains 1 step to count and PROFILED_STEPS steps to time. Every rank must call it. The model must run eagerly.
    """
    names = {module: name for name, module in session.model.named_modules()} | {session.loss_fn: LOSS}
    timer = LayerTimer(names, session.world.device.torch_device.type)
    with timer.tracker.track(), OperatorCounter(timer.tracker, timer.device_type) as counter:
        session.train(1)
    with timer.time():
        session.train(PROFILED_STEPS)
    return timer.layers(counter.counted, PROFILED_STEPS)


class LayerTimer:
    """Times the layers ``names`` of a training on ``device_type``, in the steps that run inside of ``time``."""

    def __init__(self, names: Mapping[nn.Module, str], device_type: str) -> None:
        self._names, self.device_type = names, device_type
        self.tracker = LayerTracker(names)
        self._timed: defaultdict[Place, Timed] = defaultdict(Timed)

    @contextmanager
    def time(self) -> Iterator[profile]:
        """Time what runs inside: kernels, on a CPU operators. The profile is complete afterwards."""
        activities = {ProfilerActivity.CPU}
        if self.device_type == "cuda":
            activities.add(ProfilerActivity.CUDA)
        else:
            silence_kineto()
        with self.tracker.track(), profile(activities=activities, acc_events=True) as window:
            yield window
        self._timed = time_layers(window, self.tracker, self.device_type)

    def layers(self, counted: Mapping[Place, Counted], steps: int) -> list[LayerWork]:
        """Time of every layer in a step, of which ``steps`` were timed, and its work, which was ``counted`` in one.

        In the order of ``names``; empty if the profiler saw no kernel.
        """
        if not any(measured.ms for measured in self._timed.values()):
            return []
        kinds = {name: type(module).__name__ for module, name in self._names.items() if name != LOSS}

        def work(place: Place) -> Work:
            found, measured = counted.get(place, Counted()), self._timed[place]
            kernels = measured.kernels / steps if self.device_type == "cuda" else found.operators
            return Work(flops=found.flops, num_bytes=found.num_bytes, kernels=kernels, ms=measured.ms / steps)

        layers = [
            LayerWork(name=name, kind=kinds.get(name, ""), forward=work((name, False)), backward=work((name, True)))
            for name in (*kinds, LOSS, GRADIENTS, OPTIMIZER, OTHER)
        ]
        return [layer for layer in layers if any(work.num_bytes or work.kernels for work in (layer.forward, layer.backward))]


class OperatorCounter(TorchDispatchMode):
    """Counts FLOPs and bytes of every operator on ``device_type`` that runs inside, per layer.

    Copies between devices do not count: they wait for the bus, not for the memory.
    """

    def __init__(self, tracker: LayerTracker, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: defaultdict[Place, Counted] = defaultdict(Counted)
        self._tracker, self._device_type = tracker, device_type

    def __torch_dispatch__(self, operator: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = operator(*args, **kwargs)
        if self._is_elsewhere((args, kwargs, out)):
            return out
        if num_bytes := operator_bytes(operator, args, kwargs, out):
            place = self.counted[self._place()]
            place.num_bytes += num_bytes
            place.operators += 1
            place.flops += operator_flops(operator, args, kwargs, out)
        return out

    def _is_elsewhere(self, tensors: Any) -> bool:
        """Whether a tensor is on another device. Scalars may be."""
        return any(isinstance(leaf, Tensor) and leaf.dim() and leaf.device.type != self._device_type for leaf in tree_leaves(tensors))

    def _place(self) -> Place:
        node = torch._C._current_autograd_node()
        if node is None or self._tracker.current != OTHER:  # a layer that is computed again for the backward pass
            return self._tracker.current, node is not None
        return self._tracker.layer_of_node(node._sequence_nr()), True


def time_layers(window: profile, tracker: LayerTracker, device_type: str) -> defaultdict[Place, Timed]:
    """Time of every layer in ``window``: of its kernels, on a CPU of its operators."""
    timed: defaultdict[Place, Timed] = defaultdict(Timed)
    for event in window.events() or []:
        place = timed[_place_of(event, tracker)]
        if device_type == "cuda":
            kernels = [kernel for kernel in event.kernels if not NON_COMPUTE.search(kernel.name)]
            place.ms += sum(kernel.duration for kernel in kernels) / 1e3
            place.kernels += len(kernels)
        elif event.name.startswith(OPERATOR_NAMESPACES):
            place.ms += event.self_cpu_time_total / 1e3
    return timed


def _place_of(event: FunctionEvent, tracker: LayerTracker) -> Place:
    """The place of an event, from the ranges around it: the innermost layer, else that of the node of autograd."""
    layer: str | None = None
    around: FunctionEvent | None = event
    while around is not None:
        if layer is None and around.name.startswith(RANGE):
            layer = around.name.removeprefix(RANGE)
        if around.name.startswith(AUTOGRAD_NODE):
            return tracker.layer_of_node(around.sequence_nr) if layer is None else layer, True
        around = around.cpu_parent
    return OTHER if layer is None else layer, False
