"""Parameters and FLOPs of a model, counted on the meta device without arithmetic or memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from ddpbench.record.errors import UsageError
from ddpbench.record.names import import_object
from ddpbench.workloads.init_model import clone
from ddpbench.workloads.registry import find_workload


@dataclass(frozen=True)
class ModelCost:
    """Trainable parameters, and FLOPs of forward and backward per sample (2 per multiply-add)."""

    parameters: int
    flops_per_sample: float


@cache
def workload_cost(workload: str, image_size: int | None) -> ModelCost:
    """The cost of the workload called ``workload``.

    Raises UsageError if its model does not support ``image_size``.
    """
    spec = find_workload(workload)
    return model_cost(import_object(spec.model)(image_size, spec.classes), spec.input_shape(image_size))


def model_cost(model: nn.Module, input_shape: tuple[int, ...]) -> ModelCost:
    """The cost of training ``model`` on inputs of ``input_shape``.

    The shape has no batch dimension. Counted by torch.utils.flop_counter in 0.1 to 1.5 s on one core; ``model`` is not modified. Raises
    UsageError if the model does not support such inputs.
    """
    meta_model = clone(model, torch.device("meta")).train()
    samples, batch = torch.empty(2, *input_shape, device="meta"), 2  # batch norm needs more than one value per channel
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward})
    try:
        with counter:
            meta_model(samples).sum().backward()
    except (RuntimeError, ValueError, AssertionError) as problem:
        inputs = f"images of {input_shape[-1]} px" if len(input_shape) == 3 else f"rows of {input_shape[-1]:,} numbers"
        raise UsageError(f"the model does not support {inputs}: {problem}", "choose another --image-size") from problem
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return ModelCost(parameters, counter.get_total_flops() / batch)


def _convolution_backward(
    gradient: Sequence[int],
    images: Sequence[int],
    weight: Sequence[int],
    bias: object,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    output_padding: object,
    groups: int,
    mask: Sequence[bool],
    **_: Any,
) -> int:
    """FLOPs of a convolution's backward.

    The gradients of input and weight each cost as much as the forward. torch's own formula ignores groups in the weight's gradient, which
    would count MobileNet at 7 times its FLOPs.
    """
    return conv_flop_count(list(images), list(weight), list(gradient), transposed) * (mask[0] + mask[1])
