"""Parameters and FLOPs of a model, counted on the meta device without arithmetic or memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.names import user_code_error
from ddpbench.record.text import pluralize
from ddpbench.workloads.init_model import build_without_weights, clone
from ddpbench.workloads.registry import find_workload

MIN_BATCH = 2
"""Batch norm needs more than one value per channel."""


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
    model = build_without_weights(spec.model, image_size, spec.classes)
    return model_cost(model, spec.input_shape(image_size), spec.classes)


def model_cost(model: nn.Module, input_shape: tuple[int, ...], classes: int) -> ModelCost:
    """The cost of training ``model`` on inputs of ``input_shape``.

    The shape has no batch dimension. Counted by torch.utils.flop_counter in 0.1 to 1.5 s on one core; ``model`` is not modified. Raises
    UsageError if the model does not support such inputs, or does not return scores (B, classes).
    """
    meta_model = clone(model, torch.device("meta")).train()
    samples = torch.empty(MIN_BATCH, *input_shape, device="meta")
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: convolution_backward_flops})
    try:
        with counter:
            output = meta_model(samples)
            _check_output(output, classes)
            output.sum().backward()
    except BenchError:
        raise
    except (RuntimeError, ValueError, AssertionError) as problem:
        raise _unsupported_input(input_shape, problem) from problem
    except Exception as problem:  # a user-defined model may raise anything
        raise user_code_error("the model failed", problem) from problem
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return ModelCost(parameters, counter.get_total_flops() / MIN_BATCH)


@cache
def check_batch_of_one(workload: str, image_size: int | None) -> None:
    """Raise UsageError if a BatchNorm of ``workload`` would see one value per channel in a batch of one sample."""
    spec = find_workload(workload)
    model = clone(build_without_weights(spec.model, image_size, spec.classes), torch.device("meta")).train()
    try:
        model(torch.empty(1, *spec.input_shape(image_size), device="meta"))
    except Exception as problem:  # a user-defined model may raise anything
        if "more than 1 value per channel" not in str(problem):
            raise user_code_error("the model failed", problem) from problem
        raise UsageError(f"{workload} cannot train on batches of one sample: {problem}", "use a larger batch: -b N") from problem


def _check_output(output: object, classes: int) -> None:
    """Raise UsageError unless ``output`` holds scores (B, classes) of MIN_BATCH samples."""
    if isinstance(output, Tensor):
        if output.shape == (MIN_BATCH, classes):
            return
        sizes = ("B", *output.shape[1:]) if output.shape[:1] == (MIN_BATCH,) else output.shape
        returned = f"({', '.join(map(str, sizes))})"
    else:
        returned = type(output).__name__
    raise UsageError(
        f"the model returns {returned}, but the workload has {pluralize(classes, 'class', 'es')}", f"it must return scores (B, {classes})"
    )


def _unsupported_input(input_shape: tuple[int, ...], problem: Exception) -> UsageError:
    if len(input_shape) == 1:
        rows = f"rows of {input_shape[0]:,} numbers"
        return UsageError(f"the model does not support {rows}: {problem}", f"the model must take {rows}")
    inputs = ", ".join(map(str, input_shape))
    return UsageError(
        f"the model does not support images of {input_shape[-1]} px: {problem}",
        f"choose another --image-size; the model must take (B, {inputs})",
    )


def convolution_backward_flops(
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
