"""A BatchNorm that waits for what follows: addition, ReLU and max-pool then run in the same kernel.

The script's own code runs unchanged. Its BatchNorm returns a tensor without values; the functions in ``_RULES`` take what it stands for,
and every other function gets the values, which torch computes then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from ddpbench.kernels.functions import batch_statistics_of, can_fuse, fits, norm_add_relu, norm_relu, norm_relu_pool

logger = logging.getLogger(__name__)


class FusedBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d whose result is deferred where the kernels can run it; elsewhere it is an ordinary one.

    ``pools`` says that a max-pool follows the ReLU after it.
    """

    pools = False

    def forward(self, input: Tensor) -> Tensor:
        """``input`` (N, C, H, W), normalized."""
        input = materialized(input)
        if torch.compiler.is_compiling() or not can_fuse(input, self):
            return super().forward(input)
        if not input.is_contiguous(memory_format=torch.channels_last):
            _warn_of_channels_first()
            return super().forward(input)
        return Deferred(Pending(self, input, batch_statistics_of(input, self)))


@cache  # once per process
def _warn_of_channels_first() -> None:
    logger.warning("fused kernels do not run on maps in channels-first order: use model.to(memory_format=torch.channels_last)")


class Pending:
    """What a deferred tensor stands for: norm(y), norm(y) + other, or relu(norm(y)) that a max-pool may follow.

    ``other`` may be deferred itself. ``result`` is the tensor with the values, as soon as a function has needed them.
    """

    def __init__(self, norm: FusedBatchNorm2d, y: Tensor, stats: Tensor, other: Tensor | None = None, is_activated: bool = False) -> None:
        self.norm, self.y, self.stats, self.is_activated = norm, y, stats, is_activated
        self.result: Tensor | None = None
        self._version = y._version
        self.add(other)

    def add(self, other: Tensor | None) -> None:
        """Add ``other``. If it is deferred itself, a copy is kept: functions may change it in place later."""
        if deferred := _pending(other):
            other = Deferred(Pending(deferred.norm, deferred.y, deferred.stats))
        self.other = None if other is None else other if deferred else materialized(other)
        self._version_of_other = _version_of(self.other)

    @property
    def is_norm(self) -> bool:
        """Whether it is norm(y), and still without values."""
        return self.result is None and self.other is None and not self.is_activated

    def parts(self) -> tuple[Tensor, FusedBatchNorm2d, Tensor]:
        """``y``, the BatchNorm, and the statistics of the batch.

        Raises:
            RuntimeError: Something has changed ``y`` or ``other`` since then.
        """
        if self.y._version != self._version or _version_of(self.other) != self._version_of_other:
            raise RuntimeError("the input of a fused BatchNorm has been modified by an inplace operation")
        return self.y, self.norm, self.stats

    def values(self) -> Tensor:
        """The tensor with the values."""
        if self.result is None:
            self.result = norm_relu(*self.parts()) if self.is_activated else self._normalize()
        return materialized(self.result)

    def _normalize(self) -> Tensor:
        y, norm, _ = self.parts()
        out = functional.batch_norm(y, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
        return out if self.other is None else out + materialized(self.other)


class Deferred(Tensor):
    """A tensor without values. Functions of torch get them, or what the tensor stands for."""

    _pending: Pending

    @staticmethod
    def __new__(cls, pending: Pending) -> Deferred:
        y = pending.y
        new: Deferred = Tensor._make_wrapper_subclass(cls, y.shape, strides=y.stride(), dtype=y.dtype, device=y.device)
        new._pending = pending
        return new

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if rule := _RULES.get(func):
            result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*tree_map_only(Deferred, materialized, args), **tree_map_only(Deferred, materialized, kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} needs the result of a fused BatchNorm without autograd: do not fuse this model")


def materialized(tensor: Tensor) -> Tensor:
    """``tensor`` with values."""
    return tensor._pending.values() if isinstance(tensor, Deferred) else tensor


def _pending(tensor: Any) -> Pending | None:
    """What ``tensor`` stands for, if it is deferred and still without values."""
    return tensor._pending if isinstance(tensor, Deferred) and tensor._pending.result is None else None


def _version_of(other: Tensor | None) -> int:
    """How often functions have changed ``other`` in place; 0 if it is deferred."""
    return 0 if other is None or isinstance(other, Deferred) else other._version


def _relu(tensor: Any, inplace: bool = False) -> Any:
    pending = _pending(tensor)
    if pending is None or pending.is_activated:
        return NotImplemented
    out = _activated(pending)
    if inplace:
        pending.result = out
    return out


def _activated(pending: Pending) -> Tensor:
    other, parts = pending.other, pending.parts()
    if other is not None:
        deferred = _pending(other)
        return norm_add_relu(*parts, *(deferred.parts() if deferred else (other,)))
    if pending.norm.pools:
        return Deferred(Pending(parts[1], parts[0], parts[2], is_activated=True))
    return norm_relu(*parts)


def _relu_in_place(tensor: Any) -> Any:
    return _relu(tensor, inplace=True)


def _add(tensor: Any, other: Any) -> Any:
    for mine, added in ((tensor, other), (other, tensor)):
        if _can_add(mine, added):
            pending: Pending = mine._pending
            return Deferred(Pending(pending.norm, pending.y, pending.stats, added))
    return NotImplemented


def _add_in_place(tensor: Any, other: Any) -> Any:
    if not _can_add(tensor, other):
        return NotImplemented
    tensor._pending.add(other)
    return tensor


def _can_add(mine: Any, added: Any) -> bool:
    pending, deferred = _pending(mine), _pending(added)
    if pending is None or not pending.is_norm or not isinstance(added, Tensor) or added is mine:
        return False
    return fits(deferred.y if deferred and deferred.is_norm else materialized(added), pending.y)


def _max_pool(
    tensor: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    pending = _pending(tensor)
    if pending is None or not pending.is_activated or ceil_mode or return_indices or any(size % 2 for size in pending.y.shape[2:]):
        return NotImplemented
    sizes = [(size, size) if isinstance(size, int) else size for size in (kernel_size, stride, padding, dilation)]
    return norm_relu_pool(*pending.parts()) if sizes == [(3, 3), (2, 2), (1, 1), (1, 1)] else NotImplemented


_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu), _relu),
    **dict.fromkeys((torch.relu_, Tensor.relu_), _relu_in_place),
    **dict.fromkeys((torch.add, Tensor.add), _add),
    Tensor.add_: _add_in_place,
    functional.max_pool2d: _max_pool,
}

_METADATA = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "is_cuda", "ndim", "layout")),
    *(getattr(Tensor, name) for name in ("size", "dim", "numel", "stride", "is_contiguous")),
}
"""What is known without values."""
