"""FLOPs and bytes of one operator, counted from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ddpbench.workloads.model_cost import convolution_backward_flops

aten = torch.ops.aten

WRITE_ONLY = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "_foreach_copy_", "_foreach_zero_"})
"""In-place operators that do not read what they write. Those that create a tensor like another one do not read that one."""

NO_KERNEL = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "resize_", "set_", "_local_scalar_dense"}
)
"""Operators that return a tensor without a kernel. Views are recognised by their results."""

GATHERS = frozenset({"embedding", "index", "index_select", "gather"})
"""Operators that read of their first argument only what they return."""

TWO_PASSES = frozenset(
    {
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
        "native_batch_norm_backward",
        "batch_norm_backward",
        "cudnn_batch_norm_backward",
        "batch_norm_relu_backward",
        "batch_norm_relu_pool_backward",
    }
)
"""Operators that read their inputs twice: a first pass sums over the batch, a second one needs the sums."""

UNREAD = frozenset({("max_pool2d_with_indices_backward", "self")})
"""Arguments that an operator takes but does not read."""


def operator_flops(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> float:
    """FLOPs of one call, 2 per multiply-add: those of convolutions and matrix products, as torch.utils.flop_counter counts them."""
    packet = operator.overloadpacket
    if packet is aten.convolution_backward:
        return convolution_backward_flops(*(_shape(arg) for arg in args), **kwargs)
    formula = flop_registry.get(packet)
    return formula(*args, **kwargs, out_val=out) if formula else 0.0


def operator_bytes(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> float:
    """Bytes that one call reads and writes if nothing stays in the caches between two passes; 0 for views, which start no kernel."""
    name = operator.overloadpacket.__name__
    arguments = [
        (argument, tensors)
        for position, argument in enumerate(operator._schema.arguments)
        if (tensors := _tensors(args[position] if position < len(args) else kwargs.get(argument.name)))
    ]
    results = _tensors(out)
    if name in NO_KERNEL or _are_views(operator, results, [tensor for _, tensors in arguments for tensor in tensors]):
        return 0.0
    written = {id(tensor): tensor for tensor in results}
    read = 0
    for position, (argument, tensors) in enumerate(arguments):
        if _writes(operator, argument, kwargs):
            written |= {id(tensor): tensor for tensor in tensors}
        if not (argument.is_out or (name, argument.name) in UNREAD or (position == 0 and _skips_first(name))):
            read += sum(map(_num_bytes, tensors))
    read += _further_reads(operator, args, results)
    passes = 2 if name in TWO_PASSES else 1
    return float(passes * read + sum(map(_num_bytes, written.values())))


def _skips_first(name: str) -> bool:
    """Whether an operator does not read its first argument, or not as a whole."""
    return name in WRITE_ONLY or name in GATHERS or name.startswith("new_") or name.endswith("_like")


def _further_reads(operator: Any, args: tuple[Any, ...], results: list[Tensor]) -> int:
    """Bytes that are read besides each argument once: by the further kernels of a convolution, and by a gather of its first argument."""
    if operator.overloadpacket.__name__ in GATHERS:
        return sum(map(_num_bytes, results))
    if operator.overloadpacket is aten.convolution_backward:
        gradient, (needs_input, needs_weight, needs_bias) = args[0], args[-1]
        kernels = sum((needs_input, needs_weight, needs_bias and gradient.is_cuda))  # on a CPU the bias is summed along with the weight
        return _num_bytes(gradient) * int(kernels - 1)
    if operator.overloadpacket is aten.convolution and args[2] is not None and args[0].is_cuda:
        return 2 * _num_bytes(results[0])  # the bias is added by a kernel of its own, which reads and writes the result
    return 0


def _writes(operator: Any, argument: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator writes this argument. Fused optimizers write gradients only to unscale them."""
    if argument.alias_info is None or not argument.alias_info.is_write:
        return False
    return not (argument.name == "grads" and kwargs.get("grad_scale") is None)


def _are_views(operator: Any, results: list[Tensor], given: list[Tensor]) -> bool:
    """Whether every result shares the memory of an argument, and none is changed."""
    if operator._schema.is_mutable:
        return False
    places = {_place(tensor) for tensor in given}
    return all(_place(tensor) in places for tensor in results)


def _place(tensor: Tensor) -> int:
    """Identity of its memory; of tensors without storage, such as sparse ones, that of the tensor."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and not tensor.is_mkldnn else id(tensor)


def _num_bytes(tensor: Tensor) -> int:
    """Bytes of its elements in memory, where an expanded dimension has one; 0 for sparse tensors and others without strides."""
    if tensor.layout is not torch.strided or tensor.is_mkldnn or tensor.is_nested:
        return 0
    return tensor.element_size() * prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else value
