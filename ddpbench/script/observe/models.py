"""The models that the optimizers of a script update: found once, then timed by their calls, their last gradient and their collectives."""

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
from torch.optim import Optimizer

from ddpbench.machine.step_timer import BACKWARD, BROADCAST, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER
from ddpbench.script.observe.earlier_models import EarlierModels
from ddpbench.script.observe.fsdp import is_fully_sharded, time_collectives
from ddpbench.script.observe.step_clock import EPOCH_START, SCRIPT, StepClock

Replace = Callable[[Any, str, Any], None]
"""Sets an attribute of an object, for as long as the hooks are installed."""

PRECISION_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
"""Precisions of models whose parameters are not float32, by their dtype."""

AUTOCAST_NAMES = {torch.float16: "amp-fp16", torch.bfloat16: "amp-bf16"}

PHASE_BEFORE_CALL: dict[int | None, int] = {
    DATA: HOST_TO_DEVICE,
    EPOCH_START: HOST_TO_DEVICE,
    HOST_TO_DEVICE: HOST_TO_DEVICE,
    OPTIMIZER: SCRIPT,
    SCRIPT: SCRIPT,
}
"""The phase that the call of a model ends, by the one before it: copies after a batch, the script's own work after an update."""

WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Names of the only child of a wrapper: of DDP, of torch.compile, of FSDP1."""

MAX_PARTS = 16
"""Parts of a model that is never called itself, such as a LightningModule or a ModuleDict, of which calls are timed."""


class ModelWatch:
    """Times the outermost models: the first call after a batch ends its copies, and the last gradient ends the local backward."""

    def __init__(self, clock: StepClock[Any], replace: Replace) -> None:
        self._clock, self._replace = clock, replace
        self._last_gradient: LastGradient | None = None
        self._found: list[ref[nn.Module]] = []
        self._uncalled: dict[int, list[ref[nn.Module]]] = {}  # models, by the id of their optimizer
        self._is_in_backward = False
        self._earlier = EarlierModels(self._is_timed, self._time_earlier)
        self._timed: set[int] = set()  # ids of the models whose calls are timed
        self._device_type = ""
        self.name = ""
        self.precision = "torch-default"
        self.num_parameters = 0
        self.keeps_precision = False  # it is known, and contexts that are entered from now on are not the script's
        self.channels_last = False  # some weights of convolutions are in that order
        self.engine = "none"  # how ranks work together: "ddp", or "fsdp" for FSDP2
        self.backend = "none"  # of the script's process group

    def find(self, optimizer: Optimizer, parameter: torch.Tensor) -> None:
        """Find the models with ``parameter``, which ``optimizer`` updates, and time them from their next call on."""
        self._device_type = parameter.device.type
        if dist.is_available() and dist.is_initialized():
            self.backend = "nccl" if "nccl" in dist.get_backend() else str(dist.get_backend())
        for model in outermost_models(parameter):
            ddp = next((each for each in model.modules() if isinstance(each, DistributedDataParallel)), None)
            self._time_calls(model, ddp)
            self._found.append(ref(model))
            self._uncalled.setdefault(id(optimizer), []).append(ref(model))
            self.channels_last = self.channels_last or any(map(is_channels_last, model.parameters()))
            trainable = [each for each in model.parameters() if each.requires_grad]
            if not self.name:
                self.name = model_name(model)
                self.precision = PRECISION_NAMES.get(trainable[0].dtype, self.precision) if trainable else self.precision
            self.num_parameters += sum(each.numel() for each in trainable)
            if ddp is not None and self._last_gradient is None:
                self.engine, self._last_gradient = "ddp", LastGradient(trainable, self._clock)
            elif self.engine == "none" and is_fully_sharded(model):
                self.engine = "fsdp"
                time_collectives(self._clock, self._replace, lambda: BACKWARD if self._is_in_backward else FORWARD)
        if not any(map(is_compiled, self.found)):
            self._earlier.look()

    @property
    def found(self) -> list[nn.Module]:
        """The outermost models, as far as they still exist."""
        return list({id(model): model for each in self._found if (model := each()) is not None}.values())

    def after_update(self, optimizer: Optimizer) -> None:
        """A known optimizer has made its step. Of a model that was not called since its last one, the parts are timed instead."""
        self._earlier.after_update()
        for model in self._uncalled.pop(id(optimizer), ()):
            for part in trainable_parts(model())[:MAX_PARTS]:
                self._time_first_call(part)
                self._uncalled.setdefault(id(optimizer), []).append(ref(part))

    def begin_backward(self) -> None:
        self._is_in_backward = True
        if self._last_gradient:
            self._last_gradient.is_marked = False

    def end_backward(self) -> bool:
        """Whether the end of the local backward has been marked, so that what followed was a wait for other ranks."""
        self._is_in_backward = False
        return self._last_gradient is not None and self._last_gradient.end_backward()

    def enter_autocast(self, device_type: str) -> None:
        """The script has entered an autocast context of ``device_type`` in a step: its own, or one around the forward of its model."""
        if not self.keeps_precision and device_type == self._device_type and torch.is_autocast_enabled(device_type):
            self.precision = AUTOCAST_NAMES.get(torch.get_autocast_dtype(device_type), self.precision)

    def remove(self) -> None:
        """Remove the hooks of gradients, and of modules."""
        self._earlier.remove()
        if self._last_gradient:
            self._last_gradient.remove()

    def _time_calls(self, model: nn.Module, ddp: DistributedDataParallel | None) -> None:
        clock, watched = self._clock, ref(model)

        def begin() -> None:
            clock.mark(PHASE_BEFORE_CALL.get(clock.last_phase, FORWARD))
            self._note_call(watched)

        self._wrap_call(model, begin, lambda: clock.mark(FORWARD))
        if ddp is not None and model is ddp:  # inside a compiled module, the call of DDP is part of the graph
            self._wrap_call(ddp.module, lambda: clock.mark(BROADCAST), lambda: None)

    def _time_first_call(self, part: nn.Module) -> None:
        """Of the parts of a model, the first one that is called after a batch ends its copies. The rest of the forward is one phase."""
        clock, watched = self._clock, ref(part)

        def begin() -> None:
            if clock.last_phase in PHASE_BEFORE_CALL:
                clock.mark(PHASE_BEFORE_CALL[clock.last_phase])
            self._note_call(watched)

        self._wrap_call(part, begin, lambda: None)

    def _is_timed(self, model: nn.Module) -> bool:
        return id(model) in self._timed

    def _time_earlier(self, model: nn.Module) -> None:
        """Time a model that is called before the trained one, such as a frozen teacher: it computes, and prepares no batch."""
        clock = self._clock

        def begin() -> None:
            if clock.last_phase in PHASE_BEFORE_CALL:
                clock.mark(PHASE_BEFORE_CALL[clock.last_phase])

        self._wrap_call(model, begin, lambda: clock.mark(FORWARD))

    def _note_call(self, model: ref[nn.Module]) -> None:
        for models in self._uncalled.values():
            if model in models:
                models.clear()  # of parts, one is enough

    def _wrap_call(self, model: nn.Module, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Call ``begin`` and ``end`` around each call of ``model``. Other instances of its class are not affected, nor are copies."""
        kind, watched = type(model), ref(model)
        self._timed.add(id(model))
        own = vars(kind).get("__call__")

        def call(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            inherited: Any = super(kind, module)  # asked now: torch.fx replaces the __call__ of nn.Module while it traces
            return inherited.__call__(*arguments, **options) if own is None else own(module, *arguments, **options)

        @wraps(kind.__call__)
        def timed_call(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or module is not watched() or not self._clock.is_timing:
                return call(module, *arguments, **options)
            begin()
            output = call(module, *arguments, **options)
            end()
            return output

        self._replace(kind, "__call__", timed_call)


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


def outermost_models(parameter: torch.Tensor) -> list[nn.Module]:
    """The modules that contain ``parameter`` and that no other module contains.

    They are searched once: hooks on every module would slow down each call, and make compiled models compile again.
    """
    outermost, queue = [], _holders("_parameters", parameter)
    seen = {id(each) for each in queue}
    for module in queue:
        parents = _holders("_modules", module)
        if not parents:
            outermost.append(module)
        queue += [each for each in parents if id(each) not in seen]
        seen.update(map(id, parents))
    return outermost


def _holders(attribute: str, value: object) -> list[nn.Module]:
    """The modules whose dict ``attribute`` has ``value``.

    Only what refers to it is looked at. With a list of all objects, another thread would fail that is just making a tuple: it cannot grow
    any more once something else refers to it.
    """
    dicts = [each for each in gc.get_referrers(value) if isinstance(each, dict)]
    referrers = gc.get_referrers(*dicts) if dicts else []
    attributes = [each for each in referrers if isinstance(each, dict) and attribute in each]  # of modules; some have no such dict
    referrers += gc.get_referrers(*attributes) if attributes else []
    modules = {id(each): each for each in referrers if issubclass(type(each), nn.Module) and attribute in vars(each)}
    return [each for each in modules.values() if any(inner is value for inner in vars(each)[attribute].values())]


def is_compiled(model: nn.Module) -> bool:
    """Whether ``model``, or a part of it, is compiled. torch._dynamo is not imported for that: a script may set before what it reads."""
    return any(type(each).__name__ == "OptimizedModule" or each._compiled_call_impl is not None for each in model.modules())


def is_channels_last(weight: torch.Tensor) -> bool:
    """Whether the weight of a convolution is in channels-last order, and in no other."""
    return weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def trainable_parts(model: nn.Module | None) -> list[nn.Module]:
    """The children of ``model`` with parameters that are trained."""
    children = model.children() if model is not None else ()
    return [each for each in children if any(parameter.requires_grad for parameter in each.parameters())]


def model_name(model: nn.Module) -> str:
    """``ResNet``; ``DistributedDataParallel(ResNet)`` for a wrapper."""
    name, parts = type(model).__name__, model._modules
    inner = next((parts[each] for each in WRAPPED if each in parts), None)
    return f"{name}({model_name(inner)})" if inner is not None else name
