"""What a script does with the tensors of a batch: whether they could be on the device from the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_HARMLESS = (Tensor.to, Tensor.cuda, Tensor.size, Tensor.dim, Tensor.__len__, Tensor.numel, Tensor.is_floating_point)
"""What a script can do wherever its batch is."""


class BatchUse:
    """Watches the tensors of one batch."""

    def __init__(self) -> None:
        self.reads_on_host = False
        """Whether the script has done anything with them but to move them, and to ask for their shape."""

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
        is_getter = getattr(function, "__name__", "") == "__get__"
        if not (is_getter or function in _HARMLESS):
            cls.use.reads_on_host = True
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            return result.as_subclass(Tensor) if isinstance(result, _Watched) else result
