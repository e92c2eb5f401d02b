"""What the fused kernels would replace in a training step, counted before they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from ddpbench.record.roofline import FusedWork, LayerWork
from ddpbench.training.layer_tracker import GRADIENTS, OPTIMIZER, OTHER, LayerTracker
from ddpbench.training.roofline import LOSS, Counted, OperatorCounter, Place
from ddpbench.training.session import Session, fuse_kernels


def count_fused_work(session: Session, layers: Sequence[LayerWork], build: Callable[[], nn.Module]) -> FusedWork:
    """What the fused kernels would replace of the measured ``layers`` of ``session``, and the bytes that they would move instead.

    ``build`` returns a new model in the dtypes of the session. Forward and backward of a plain and of a fused one run on fake tensors,
    which have shapes but no memory: nothing is computed, allocated or compiled. The shapes are those of the loader's next batch. Raises
    what fake tensors raise for a model that needs values, and UsageError if nothing can be fused.
    """
    batch = session.next_batch()
    plain_model, fused_model = build(), build()
    fuse_kernels(fused_model, session.config.workload)
    plain, fused = (_count(session, model, batch) for model in (plain_model, fused_model))
    changed = [place for place in {*plain, *fused} if place[0] not in (LOSS, GRADIENTS, OPTIMIZER, OTHER) and plain[place] != fused[place]]
    replaced_ms, num_bytes, flops = 0.0, 0.0, 0.0
    works = {(layer.name, backward): work for layer in layers for backward, work in ((False, layer.forward), (True, layer.backward))}
    for place in changed:
        work, before, after = works.get(place), plain[place], fused[place]
        if before.flops and before.flops == after.flops:  # a convolution that adds fewer gradients stays as slow, but for these bytes
            num_bytes += after.num_bytes - before.num_bytes
        else:
            replaced_ms += work.ms if work else 0.0
            num_bytes += after.num_bytes
            flops += after.flops
    return FusedWork(replaced_ms=replaced_ms, num_bytes=max(num_bytes, 0.0), flops=flops)


def _count(session: Session, model: nn.Module, batch: Iterable[Tensor]) -> defaultdict[Place, Counted]:
    """FLOPs and bytes of each layer of ``model``, forward and backward, for ``batch`` on the device of the session."""
    device = session.world.device.torch_device
    tracker = LayerTracker({module: name for name, module in model.named_modules()})

    def fake(tensor: Tensor) -> Tensor:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return empty.requires_grad_(tensor.requires_grad)

    with FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True):
        state = {name: fake(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        images, labels = map(fake, batch)
        with tracker.track(), OperatorCounter(tracker, device.type) as counter:
            with session.engine.autocast():
                loss = session.loss_fn(functional_call(model, state, (images,)), labels)
            loss.backward()
    found: defaultdict[Place, Counted] = defaultdict(Counted)
    return found | {place: replace(counted, operators=0) for place, counted in counter.counted.items()}
