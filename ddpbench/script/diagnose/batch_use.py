"""Watches how a script uses the tensors of a batch: whether they could be on the device from the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_MOVES = (Tensor.to, Tensor.cuda)
_ASKS = (Tensor.size, Tensor.dim, Tensor.__len__, Tensor.numel, Tensor.is_floating_point)
_ATTRIBUTES = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse", "is_nested")


class BatchUse:
    """Watches the tensors of the batches that it has ``watched``."""

    def __init__(self) -> None:
        self.reads_on_host = False
        """Whether the script has done anything with them but move them to a device, and ask for their shape."""

    def watched(self, tensor: Tensor) -> Tensor:
        """An alias of ``tensor`` that notes what is done with it; what comes of it is a plain tensor."""
        if type(tensor) is not Tensor:  # of a class that may do the same
            self.reads_on_host = True
            return tensor
        return tensor.as_subclass(type("WatchedTensor", (_Watched,), {"use": self}))


class _Watched(Tensor):
    use: BatchUse

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        asks = function in _ASKS or getattr(getattr(function, "__self__", None), "__name__", "") in _ATTRIBUTES
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            is_moved = function in _MOVES and result.device.type != "cpu"
            if not (asks or is_moved):
                cls.use.reads_on_host = True
            return result.as_subclass(Tensor) if isinstance(result, _Watched) else result
