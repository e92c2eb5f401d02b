"""The layers of the model that a script trains: their time and work, and what fused kernels would replace of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile
from torch.utils._pytree import tree_leaves, tree_map_only

from ddpbench.machine.device import describe_device
from ddpbench.machine.peaks import measure_limits
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.roofline import Roofline
from ddpbench.script.diagnose.fused_models import fused
from ddpbench.script.ranks.observation import Observation
from ddpbench.training.fused_work import Fake, compare_work, count_model
from ddpbench.training.roofline import LayerMeter


class ModelLayers:
    """Measures ``model``, which computes in ``dtype`` on ``device``, in the steps of the script that run inside of its contexts."""

    @classmethod
    def of(cls, observation: Observation) -> ModelLayers:
        """Of the model that the script trains. Raises ConfigFailed if there are several, or it has been freed."""
        models, device = observation.models, observation.observer.device
        if len(models) != 1:
            raise ConfigFailed(f"the script trains {len(models)} models")
        model = models[0]
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        return cls(inner, device or torch.device("cpu"), PRECISIONS[observation.precision].compute_dtype)

    def __init__(self, model: nn.Module, device: torch.device, dtype: str) -> None:
        self._model, self._device, self._dtype = model, device, dtype
        self._meter = LayerMeter({module: name for name, module in model.named_modules()}, device.type)
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] = (), {}  # of its last call, without values
        self._autocast: tuple[bool, torch.dtype] = False, torch.float32
        self._counted = self._timed = 0  # batches

    @contextmanager
    def count(self, batches: int) -> Iterator[None]:
        self._counted = batches
        handle = self._model.register_forward_pre_hook(self._note_inputs, with_kwargs=True)
        try:
            with self._meter.count():
                yield
        finally:
            handle.remove()

    @contextmanager
    def time(self, batches: int) -> Iterator[profile]:
        self._timed = batches
        with self._meter.time() as window:
            yield window

    def roofline(self) -> Roofline | None:
        """The layers per batch, and what fused kernels would replace; None if the profiler saw no kernel.

        Takes three seconds, in which the limits of the device are measured. Raises what fake tensors raise for a model that needs values.
        """
        layers = self._meter.layers(self._counted, self._timed) if self._timed else []
        if not layers:
            return None
        plain = count_model(self._model, self._device, self._loss)
        with fused([self._model], self._device):
            work = compare_work(layers, plain, count_model(self._model, self._device, self._loss))
        return Roofline(layers=layers, limits=measure_limits(describe_device(self._device), self._dtype), fused=work)

    def _note_inputs(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs = tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), (args, kwargs))
        kind = self._device.type
        self._autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def _loss(self, call: Callable[..., Any], fake: Fake) -> Tensor:
        """A loss of all outputs: that of the script is not part of the model."""
        args, kwargs = tree_map_only(Tensor, fake, self._inputs)
        enabled, dtype = self._autocast
        with torch.autocast(self._device.type, dtype, enabled=enabled):
            outputs = tree_leaves(call(*args, **kwargs))
        return torch.stack([each.float().sum() for each in outputs if isinstance(each, Tensor) and each.requires_grad]).sum()
