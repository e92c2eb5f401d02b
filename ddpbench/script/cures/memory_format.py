"""Weights in channels-last order, in which convolutions of Tensor Cores and of oneDNN need no reordering of their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from ddpbench.machine.host import MAX_MEMORY_FRACTION
from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.cures.cure import Training, free_bytes, owns_its_memory
from ddpbench.script.observe.models import is_channels_last

BUCKET_WARNING = "Grad strides do not match bucket view strides"
"""What DDP says of a model that was converted after it was wrapped, as only here."""


class ChannelsLast:
    """``model.to(memory_format=torch.channels_last)``, with the optimizer's moments and gradients in the same order.

    Outputs of a convolution have the order of its weights, so that batches need no change. A checkpoint that was written before has
    moments in the old order: other implementations of an optimizer then take longer, but fused ones read them in the order of the weights.
    """

    code: CureCode = "channels-last"

    def obstacle(self, training: Training) -> Obstacle | None:
        weights = [each for each in (*training.parameters, *training.buffers) if each.dim() >= 4]
        if training.is_compiled:
            return "compiled"
        if not any(each.dim() == 4 for each in weights):
            return "no-convolutions"
        if any(each.dim() > 4 for each in weights):
            return "volumes"
        if any(map(is_channels_last, weights)):
            return "already-on"
        addresses = [each.data_ptr() for each in weights]
        if not all(map(owns_its_memory, [*training.parameters, *weights])) or len(set(addresses)) < len(addresses):
            return "other-memory"
        if training.has_more_optimizers:
            return "many-optimizers"
        if not all(is_torchs_own(each) for each in training.optimizers):
            return "other-optimizer"
        if _converted_bytes(training, weights) > MAX_MEMORY_FRACTION * free_bytes(training.device):
            return "no-memory"
        is_fused = any(group.get("fused") for each in training.optimizers for group in each.param_groups)
        return "fused-moments" if is_fused else None

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        warnings.filterwarnings("ignore", message=BUCKET_WARNING)
        weights = [each for each in (*training.parameters, *training.buffers) if each.dim() == 4]
        before = [(each, each.data) for weight in weights for each in _with_state(weight, training)]
        try:
            for tensor, _ in before:
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
            yield
        finally:
            for tensor, own in before:  # in its own memory, which others may refer to
                tensor.data = own.copy_(tensor.data)
            for weight in weights:  # moments and gradients that are new get the order of their weight
                for tensor in _with_state(weight, training):
                    if tensor.stride() != weight.stride():
                        tensor.data = torch.empty_like(weight.data, dtype=tensor.dtype).copy_(tensor.data)


def is_torchs_own(optimizer: Optimizer) -> bool:
    """Whether it is one of ``torch.optim``, whose state is known."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _converted_bytes(training: Training, weights: Sequence[Tensor]) -> int:
    """Memory of the second copy, while both exist."""
    return sum(tensor.nbytes for weight in weights for tensor in _with_state(weight, training))


def _with_state(weight: Tensor, training: Training) -> list[Tensor]:
    """``weight``, its gradient, and what optimizers keep of the same shape; not what is a part of a bucket."""
    state = [value for each in training.optimizers for value in each.state.get(weight, {}).values()]
    others = [each for each in (weight.grad, *state) if isinstance(each, Tensor) and each.shape == weight.shape]
    return [weight, *(each for each in others if owns_its_memory(each))]
