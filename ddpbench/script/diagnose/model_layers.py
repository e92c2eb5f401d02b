"""The layers of the model that a script trains: their time and work, and the limits of the device."""

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
from ddpbench.script.observe.fsdp import is_fully_sharded
from ddpbench.script.observe.models import is_compiled
from ddpbench.script.ranks.observation import Observation
from ddpbench.training.fused_work import Fake, count_model
from ddpbench.training.roofline import LayerTimer


class ModelLayers:
    """Times the layers of ``model``, which computes in ``dtype`` on ``device``, while the script trains it on ``batches`` batches."""

    @classmethod
    def of(cls, observation: Observation, batches: int) -> ModelLayers:
        """Of the model that the script trains. Raises ConfigFailed if there are several, it has been freed, is compiled, or sharded."""
        models, device = observation.models, observation.observer.device
        if len(models) != 1:
            raise ConfigFailed(f"the script trains {len(models)} models")
        if is_compiled(models[0]) or is_fully_sharded(models[0]):  # hooks on its layers would break its graphs, or meet shards
            raise ConfigFailed("the model is compiled, or sharded")
        model = models[0].module if isinstance(models[0], DistributedDataParallel) else models[0]
        return cls(model, device or torch.device("cpu"), PRECISIONS[observation.precision].compute_dtype, batches)

    def __init__(self, model: nn.Module, device: torch.device, dtype: str, batches: int) -> None:
        self._model, self._device, self._dtype, self._batches = model, device, dtype, batches
        self._timer = LayerTimer({module: name for name, module in model.named_modules()}, device.type)
        self._training_calls = self._other_calls = 0
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] = (), {}  # of the last training call, without values
        self._autocast: tuple[bool, torch.dtype] = False, torch.float32

    @contextmanager
    def time(self) -> Iterator[profile]:
        handle = self._model.register_forward_pre_hook(self._note_call, with_kwargs=True)
        try:
            with self._timer.time() as window:
                yield window
        finally:
            handle.remove()

    def roofline(self) -> Roofline:
        """The layers per batch. Takes three seconds, in which it measures the limits of the device.

        Raises:
            ConfigFailed: The model was not called exactly once per batch, or the profiler saw no kernel of it.
            Exception: What fake tensors raise for a model that needs values.
        """
        if (self._training_calls, self._other_calls) != (self._batches, 0):
            raise ConfigFailed(
                f"{self._batches} batches, but {self._training_calls} calls of the model and {self._other_calls} in validation"
            )
        layers = self._timer.layers(count_model(self._model, self._device, self._loss), self._batches)
        if not any(each.kind for each in layers):
            raise ConfigFailed("torch.profiler saw no kernel of the layers")
        return Roofline(layers=layers, limits=measure_limits(describe_device(self._device), self._dtype))

    def _note_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (model.training and torch.is_grad_enabled()):
            self._other_calls += 1
            return
        self._training_calls += 1
        self._inputs = tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), (args, kwargs))
        kind = self._device.type
        self._autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def _loss(self, call: Callable[..., Any], fake: Fake) -> Tensor:
        """A loss of all outputs: that of the script is not part of the model."""
        args, kwargs = tree_map_only(Tensor, fake, self._inputs)
        enabled, dtype = self._autocast
        with torch.enable_grad(), torch.autocast(self._device.type, dtype, enabled=enabled):
            outputs = tree_leaves(call(*args, **kwargs))
        return torch.stack([each.float().sum() for each in outputs if isinstance(each, Tensor) and each.requires_grad]).sum()
