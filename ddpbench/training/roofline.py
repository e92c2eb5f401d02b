"""Work and time of a training step, layer by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

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
    """Work and time of every layer in a step of this rank, in the order of ``named_modules``.

    Trains 1 step to count and PROFILED_STEPS steps to time. Every rank must call it. The model must run eagerly.
    """
    names = {module: name for name, module in session.model.named_modules()} | {session.loss_fn: LOSS}
    tracker = LayerTracker(names)
    with tracker.track(), OperatorCounter(tracker) as counter:
        session.train(1)
    timed = time_layers(session, tracker)
    kinds = {name: type(module).__name__ for module, name in names.items() if name != LOSS}
    is_cuda = torch.cuda.is_initialized()

    def work(place: Place) -> Work:
        counted, measured = counter.counted[place], timed[place]
        kernels = measured.kernels / PROFILED_STEPS if is_cuda else counted.operators
        return Work(flops=counted.flops, num_bytes=counted.num_bytes, kernels=kernels, ms=measured.ms / PROFILED_STEPS)

    layers = [
        LayerWork(name=name, kind=kinds.get(name, ""), forward=work((name, False)), backward=work((name, True)))
        for name in (*kinds, LOSS, GRADIENTS, OPTIMIZER, OTHER)
    ]
    return [layer for layer in layers if layer.forward.kernels or layer.backward.kernels]


class OperatorCounter(TorchDispatchMode):
    """Counts FLOPs and bytes of every operator that runs inside, per layer."""

    def __init__(self, tracker: LayerTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: defaultdict[Place, Counted] = defaultdict(Counted)
        self._tracker = tracker

    def __torch_dispatch__(self, operator: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = operator(*args, **kwargs)
        if num_bytes := operator_bytes(operator, args, kwargs, out):
            place = self.counted[self._place()]
            place.num_bytes += num_bytes
            place.operators += 1
            place.flops += operator_flops(operator, args, kwargs, out)
        return out

    def _place(self) -> Place:
        node = torch._C._current_autograd_node()
        return (self._tracker.current, False) if node is None else (self._tracker.layer_of_node(node._sequence_nr()), True)


def time_layers(session: Session, tracker: LayerTracker) -> defaultdict[Place, Timed]:
    """Time of every layer in PROFILED_STEPS steps: of its kernels, on a CPU of its operators."""
    is_cuda = torch.cuda.is_initialized()
    activities = {ProfilerActivity.CPU}
    if is_cuda:
        activities.add(ProfilerActivity.CUDA)
    else:
        silence_kineto()
    with tracker.track(), profile(activities=activities, acc_events=True) as window:
        session.train(PROFILED_STEPS)
    timed: defaultdict[Place, Timed] = defaultdict(Timed)
    for event in window.events() or []:
        place = timed[_place_of(event, tracker)]
        if is_cuda:
            kernels = [kernel for kernel in event.kernels if not NON_COMPUTE.search(kernel.name)]
            place.ms += sum(kernel.duration for kernel in kernels) / 1e3
            place.kernels += len(kernels)
        elif event.name.startswith(OPERATOR_NAMESPACES):
            place.ms += event.self_cpu_time_total / 1e3
    return timed


def _place_of(event: FunctionEvent, tracker: LayerTracker) -> Place:
    """The place of an event, from the ranges around it."""
    around: FunctionEvent | None = event
    while around is not None:
        if around.name.startswith(RANGE):
            return around.name.removeprefix(RANGE), False
        if around.name.startswith(AUTOGRAD_NODE):
            return tracker.layer_of_node(around.sequence_nr), True
        around = around.cpu_parent
    return OTHER, False
