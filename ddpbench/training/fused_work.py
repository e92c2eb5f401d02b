"""What the fused kernels would replace in a training step, counted before they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from ddpbench.record.roofline import FusedWork, LayerWork
from ddpbench.training.layer_tracker import GRADIENTS, OPTIMIZER, OTHER, LayerTracker
from ddpbench.training.roofline import LOSS, Counted, OperatorCounter, Place
from ddpbench.training.session import Session, fuse_kernels

Fake = Callable[[Tensor], Tensor]
"""Returns a fake tensor like another: it has a shape, but no memory."""

LossOf = Callable[[Callable[..., Any], Fake], Tensor]
"""Returns a loss from the call of a model with fake parameters, and ``Fake``."""


def count_fused_work(session: Session, layers: Sequence[LayerWork], build: Callable[[], nn.Module]) -> FusedWork:
    """What the fused kernels would replace of the measured ``layers`` of ``session``, and the bytes that they would move instead.

    ``build`` returns a new model in the dtypes of the session. The shapes are those of the loader's next batch. Raises what fake tensors
    raise for a model that needs values, and UsageError if nothing can be fused.
    """
    images, labels = session.next_batch()
    plain_model, fused_model = build(), build()
    fuse_kernels(fused_model, session.config.workload)

    def loss_of(call: Callable[..., Any], fake: Fake) -> Tensor:
        with session.engine.autocast():
            loss: Tensor = session.loss_fn(call(fake(images)), fake(labels))
            return loss

    device = session.world.device.torch_device
    return _compare_work(layers, count_model(plain_model, device, loss_of), count_model(fused_model, device, loss_of))


def count_model(model: nn.Module, device: torch.device, loss_of: LossOf) -> Mapping[Place, Counted]:
    """FLOPs and bytes of each layer of ``model``, forward and backward, on ``device``.

    Both run on fake tensors: nothing is computed, allocated or compiled.
    """
    tracker = LayerTracker({module: name for name, module in model.named_modules()})

    def fake(tensor: Tensor) -> Tensor:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return empty.requires_grad_(tensor.requires_grad)

    with FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True):
        state = {name: fake(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        with tracker.track(), OperatorCounter(tracker, device.type) as counter:
            loss_of(lambda *args, **kwargs: functional_call(model, state, args, kwargs), fake).backward()
    return {place: replace(counted, operators=0) for place, counted in counter.counted.items()}


def _compare_work(layers: Sequence[LayerWork], plain: Mapping[Place, Counted], fused: Mapping[Place, Counted]) -> FusedWork:
    """What changes from a ``plain`` model, whose ``layers`` were measured, to a ``fused`` one."""
    nothing = Counted()
    changed = [
        place
        for place in {*plain, *fused}
        if place[0] not in (LOSS, GRADIENTS, OPTIMIZER, OTHER) and plain.get(place, nothing) != fused.get(place, nothing)
    ]
    replaced_ms, num_bytes, flops = 0.0, 0.0, 0.0
    works = {(layer.name, backward): work for layer in layers for backward, work in ((False, layer.forward), (True, layer.backward))}
    for place in changed:
        work, before, after = works.get(place), plain.get(place, nothing), fused.get(place, nothing)
        if before.flops and before.flops == after.flops:  # a convolution that adds fewer gradients stays as slow, but for these bytes
            num_bytes += after.num_bytes - before.num_bytes
        else:
            replaced_ms += work.ms if work else 0.0
            num_bytes += after.num_bytes
            flops += after.flops
    return FusedWork(replaced_ms=replaced_ms, num_bytes=max(num_bytes, 0.0), flops=flops)
