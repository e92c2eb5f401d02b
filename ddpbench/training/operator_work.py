"""FLOPs and bytes of one operator, counted from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ddpbench.workloads.model_cost import convolution_backward_flops

aten = torch.ops.aten

WRITE_ONLY = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_"})
"""In-place operators that do not read the tensor that they write. Those that create a tensor like another one do not read that one."""

NO_KERNEL = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "_local_scalar_dense"})
"""Operators that return a tensor without a kernel. Views are recognised by their results."""

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

UNREAD: Mapping[str, tuple[int, ...]] = {"max_pool2d_with_indices_backward": (1,)}
"""Positions of arguments that an operator takes but does not read."""


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
    written = {id(tensor): tensor for tensor in (*_tensors(out), *_mutated(operator, args, kwargs))}
    if name in NO_KERNEL or not written:
        return 0.0
    unread = UNREAD.get(name, ())
    read = [tensor for position, arg in enumerate((*args, *kwargs.values())) if position not in unread for tensor in _tensors(arg)]
    if _is_view(operator, read, written.values()):
        return 0.0
    if name in WRITE_ONLY or name.startswith("new_") or name.endswith("_like"):
        del read[0]
    if operator.overloadpacket is aten.convolution_backward and args[-1][0] and args[-1][1]:
        read.append(args[0])  # one kernel for the gradient of the input, one for that of the weight
    passes = 2 if name in TWO_PASSES else 1
    return float(passes * sum(map(_num_bytes, read)) + sum(map(_num_bytes, written.values())))


def _mutated(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that the operator changes in place."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[position] if position < len(args) else kwargs.get(argument.name))


def _is_view(operator: Any, read: Iterable[Tensor], written: Iterable[Tensor]) -> bool:
    """Whether every result shares the memory of an argument that is not changed."""
    if operator._schema.is_mutable:
        return False
    places = {tensor.untyped_storage()._cdata for tensor in read}
    return all(tensor.untyped_storage()._cdata in places for tensor in written)


def _num_bytes(tensor: Tensor) -> int:
    """Bytes of its elements in memory, where an expanded dimension has one."""
    return tensor.element_size() * prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else value
