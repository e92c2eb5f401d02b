"""The models that the optimizers of a script update: found once, then timed by their calls and their last gradient."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpbench.machine.step_timer import BACKWARD, BROADCAST, DATA, FORWARD, HOST_TO_DEVICE
from ddpbench.script.step_clock import StepClock

Replace = Callable[[Any, str, Any], None]
"""Sets an attribute of an object, for as long as the hooks are installed."""

PRECISION_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
"""Precisions of models whose parameters are not float32, by their dtype."""

AUTOCAST_NAMES = {torch.float16: "amp-fp16", torch.bfloat16: "amp-bf16"}


class ModelWatch:
    """Times the outermost models: the first call after a batch ends its copies, and the last gradient ends the local backward."""

    def __init__(self, clock: StepClock[Any], replace: Replace) -> None:
        self._clock, self._replace = clock, replace
        self._last_gradient: LastGradient | None = None
        self.name = ""
        self.precision = "torch-default"
        self.num_parameters = 0
        self.is_ddp = False
        self.backend = "none"  # of the script's process group

    def find(self, parameters: Sequence[torch.Tensor]) -> None:
        """Find the models with these parameters, and time them from their next call on."""
        if dist.is_available() and dist.is_initialized():
            self.backend = "nccl" if "nccl" in dist.get_backend() else str(dist.get_backend())
        for model in outermost_models(parameters[:1]):
            ddp = next((each for each in model.modules() if isinstance(each, DistributedDataParallel)), None)
            self._time_calls(model, ddp)
            trainable = [each for each in model.parameters() if each.requires_grad]
            if not self.name:
                self.name, self.is_ddp = model_name(model), ddp is not None
                self.precision = PRECISION_NAMES.get(trainable[0].dtype, self.precision) if trainable else self.precision
            self.num_parameters += sum(each.numel() for each in trainable)
            if ddp is not None and self._last_gradient is None:
                self._last_gradient = LastGradient(trainable, self._clock)

    def begin_backward(self) -> None:
        if self._last_gradient:
            self._last_gradient.is_marked = False

    def end_backward(self) -> bool:
        """Whether the end of the local backward has been marked, so that what followed was a wait for other ranks."""
        return self._last_gradient is not None and self._last_gradient.end_backward()

    def remove(self) -> None:
        """Remove the hooks of gradients."""
        if self._last_gradient:
            self._last_gradient.remove()

    def _time_calls(self, model: nn.Module, ddp: DistributedDataParallel | None) -> None:
        clock, device_type = self._clock, next((each.device.type for each in model.parameters()), "cpu")

        def begin() -> None:
            clock.mark(HOST_TO_DEVICE if clock.last_phase == DATA else FORWARD)
            if torch.is_autocast_enabled(device_type):
                self.precision = AUTOCAST_NAMES.get(torch.get_autocast_dtype(device_type), self.precision)

        self._wrap_call(model, begin, lambda: clock.mark(FORWARD))
        if ddp is not None and model is ddp:  # inside a compiled module, the call of DDP is part of the graph
            self._wrap_call(ddp.module, lambda: clock.mark(BROADCAST), lambda: None)

    def _wrap_call(self, model: nn.Module, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Call ``begin`` and ``end`` around each call of ``model``. Other instances of its class are not affected, nor are copies."""
        call, watched = type(model).__call__, ref(model)

        @wraps(call)
        def timed_call(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or module is not watched() or not self._clock.is_timing:
                return call(module, *arguments, **options)
            begin()
            output = call(module, *arguments, **options)
            end()
            return output

        self._replace(type(model), "__call__", timed_call)


class LastGradient:
    """Marks the end of the local backward, when the gradient is ready that arrived last in the first backward."""

    def __init__(self, parameters: Sequence[nn.Parameter], clock: StepClock[Any]) -> None:
        self._clock = clock
        self._latest: nn.Parameter | None = None
        self.is_marked = False
        self._handles = [each.register_post_accumulate_grad_hook(self._note) for each in parameters]
        self._is_found = False

    def end_backward(self) -> bool:
        """Whether the gradient has been marked in this backward. After the first one, only the gradient that came last is marked."""
        if not self._is_found and self._latest is not None:
            self.remove()
            self._handles, self._is_found = [self._latest.register_post_accumulate_grad_hook(self._mark)], True
            self._latest = None
        return self.is_marked

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _note(self, parameter: torch.Tensor) -> None:
        self._latest = parameter  # type: ignore[assignment]

    def _mark(self, _: torch.Tensor) -> None:
        self.is_marked = True
        self._clock.mark(BACKWARD)


def outermost_models(parameters: Sequence[torch.Tensor]) -> list[nn.Module]:
    """The modules that contain one of ``parameters`` and that no other module contains.

    They are searched among all objects, once: hooks on every module would slow down each call, and make compiled models compile again.
    """
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and "_modules" in vars(each)]
    parents: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in module._modules.values():
            parents.setdefault(id(child), []).append(module)
    wanted = {id(each) for each in parameters}
    found = {id(module): module for module in modules if wanted & {id(each) for each in module._parameters.values()}}
    queue = list(found.values())
    for module in queue:
        above = [each for each in parents.get(id(module), ()) if id(each) not in found]
        found |= {id(each): each for each in above}
        queue += above
    return [module for module in queue if id(module) not in parents]


def model_name(model: nn.Module) -> str:
    """``ResNet``; ``DistributedDataParallel(ResNet)`` for a wrapper."""
    name, parts = type(model).__name__, model._modules
    inner = parts.get("module", parts.get("_orig_mod"))  # of DDP, of torch.compile
    return f"{name}({model_name(inner)})" if inner is not None else name
