"""Repeats batches of a script: from host memory, or so that its own ``.to()`` finds them on the device already."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ddpbench.machine.host import free_memory_bytes
from ddpbench.record.errors import BenchError
from ddpbench.script.observe.source import num_samples

MAX_BATCHES = 16

MAX_MEMORY_FRACTION = 0.1
"""Fraction of the free memory, of the node and of the device, that kept batches may take."""

PLAIN_TYPES = (int, float, complex, str, bytes, bool, type(None), np.generic)


class RepeatedBatches:
    """Copies of up to ``MAX_BATCHES`` batches, handed out again and again.

    What is handed out is a new structure of the same tensors. A script may change a tensor in place: its version shows it, and a fresh copy
    takes its place. ``ranks_per_node`` share the memory.
    """

    def __init__(self, ranks_per_node: int = 1) -> None:
        self._ranks_per_node = ranks_per_node
        self._batches: list[KeptBatch] = []
        self._next = 0
        self._is_full = False
        self.samples = 0  # in the batch that was handed out last

    @property
    def has_batches(self) -> bool:
        return bool(self._batches)

    @property
    def batch_bytes(self) -> int:
        """Bytes of one batch."""
        return self._batches[0].num_bytes

    @property
    def bytes_per_sample(self) -> float:
        return sum(each.num_bytes for each in self._batches) / max(1, sum(each.samples for each in self._batches))

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images (N, C, H, W) in a batch; None if there are none."""
        images = (leaf for leaf in self._batches[0].leaves if isinstance(leaf, Tensor) and leaf.ndim == 4)
        return next(((each.shape[2], each.shape[3]) for each in images), None)

    def keep(self, batch: Any, samples: int | None = None) -> None:
        """Copy ``batch``, which the script has not seen yet, if there is room. Raises BenchError if it cannot be copied.

        Without its number of ``samples``, that is the leading dimension of its first tensor.
        """
        if self._is_full:
            return
        kept = KeptBatch.of(batch, num_samples(batch) if samples is None else samples)
        room = MAX_MEMORY_FRACTION * free_memory_bytes() / self._ranks_per_node
        self._is_full = len(self._batches) + 1 >= MAX_BATCHES or 2 * kept.num_bytes * (len(self._batches) + 2) > room
        self._batches.append(kept)

    def next_batch(self) -> Any:
        """The next of the batches, in host memory; beside a GPU it is page-locked."""
        kept = self._batches[self._next % len(self._batches)]
        self._next += 1
        self.samples = kept.samples
        return kept.hand_out()

    @contextmanager
    def on_device(self, device: torch.device) -> Iterator[None]:
        """Let ``.to()`` and ``.cuda()`` of a handed-out tensor return a clone of a copy that is on ``device`` already.

        Only as many batches are used as fit there. Does nothing on the CPU, and without batches.
        """
        if device.type != "cuda" or not self._batches:
            yield
            return
        room = MAX_MEMORY_FRACTION * torch.cuda.mem_get_info(device)[0]
        fitting = max(1, min(len(self._batches), int(room / max(1, self._batches[0].num_bytes))))
        before, self._batches = self._batches, self._batches[:fitting]
        copies = {
            id(leaf): DeviceCopy(kept, index, leaf.to(device))
            for kept in self._batches
            for index, leaf in enumerate(kept.handed_out)
            if isinstance(leaf, Tensor) and not leaf.is_cuda
        }
        try:
            with _patched_copies(copies):
                yield
        finally:
            self._batches = before


@dataclass
class KeptBatch:
    """One batch: its structure, its leaves, and what is handed out of it."""

    samples: int
    rebuild: Callable[[list[Any]], Any]
    leaves: list[Any]  # never handed out
    handed_out: list[Any]
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Any, samples: int) -> KeptBatch:
        """A copy of ``batch``, which has ``samples``. Raises BenchError if it holds anything but tensors, arrays and plain values."""
        leaves, rebuild = flatten(batch)
        pristine = [_clone(leaf) for leaf in leaves]
        for leaf, copied in zip(leaves, pristine, strict=True):
            if type(copied) is not type(leaf) or not isinstance(leaf, (Tensor, np.ndarray, *PLAIN_TYPES)):
                raise BenchError(f"cannot repeat batches that hold objects of class {type(leaf).__name__}", "use ddpbench watch")
        handed_out = [_clone(leaf) for leaf in pristine]
        return cls(samples, rebuild, pristine, handed_out, [leaf._version if isinstance(leaf, Tensor) else 0 for leaf in handed_out])

    @property
    def num_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.handed_out if isinstance(leaf, Tensor))

    def hand_out(self) -> Any:
        """The batch as it was kept, in a new structure."""
        for index, leaf in enumerate(self.handed_out):
            if isinstance(leaf, Tensor) and not self.is_unchanged(index):
                self._restore(index, leaf)
        return self.rebuild([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in self.handed_out])

    def is_unchanged(self, index: int) -> bool:
        """Whether the script has left the tensor at ``index`` as it was handed out."""
        leaf = self.handed_out[index]
        return bool(leaf._version == self.versions[index]) and not leaf.requires_grad

    def _restore(self, index: int, leaf: Tensor) -> None:
        leaf.requires_grad_(False).grad = None
        if leaf.shape == self.leaves[index].shape:
            leaf.copy_(self.leaves[index])
        else:
            leaf = self.handed_out[index] = _clone(self.leaves[index])
        self.versions[index] = leaf._version


def _clone(leaf: Any) -> Any:
    """A copy of an array, or of a tensor, in page-locked memory if there is a GPU; another leaf as it is, since it cannot change.

    A tensor of a subclass that has no page-locked version stays in pageable memory.
    """
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not isinstance(leaf, Tensor):
        return leaf
    copied = leaf.detach().clone()
    pinned = copied.pin_memory() if torch.cuda.is_initialized() and not leaf.is_cuda else copied
    return pinned if type(pinned) is type(leaf) else copied


def flatten(batch: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of a nested batch, and the function that builds such a batch from leaves."""
    if isinstance(batch, UserDict):  # what tokenizers of transformers return
        leaves, rebuild_data = flatten(batch.data)

        def rebuild(new_leaves: list[Any]) -> Any:
            new = copy.copy(batch)
            new.data = rebuild_data(new_leaves)
            return new

        return leaves, rebuild
    leaves, spec = tree_flatten(batch)
    return leaves, _Unflatten(spec)


@dataclass(frozen=True)
class _Unflatten:
    spec: TreeSpec

    def __call__(self, leaves: Sequence[Any]) -> Any:
        return tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class DeviceCopy:
    """What a handed-out tensor in host memory holds, on the device."""

    kept: KeptBatch
    index: int
    device: Tensor

    def of(self, tensor: Tensor) -> Tensor | None:
        """The copy, unless the script has changed ``tensor``."""
        return self.device if self.kept.handed_out[self.index] is tensor and self.kept.is_unchanged(self.index) else None


_copies: dict[int, DeviceCopy] = {}
"""The tensors that are on the device already, by identity: those of all loaders, since a script may zip several."""


@contextmanager
def _patched_copies(copies: dict[int, DeviceCopy]) -> Iterator[None]:
    """Let ``Tensor.to`` and ``Tensor.cuda`` know ``copies``. All other tensors go to torch as before."""
    before = [] if _copies else [(name, vars(Tensor).get(name, _MISSING)) for name in ("to", "cuda")]
    if before:
        Tensor.to, Tensor.cuda = _patched_to(Tensor.to), _patched_cuda(Tensor.cuda)  # type: ignore[method-assign]
    _copies.update(copies)
    try:
        yield
    finally:
        for key in copies:
            _copies.pop(key, None)
        for name, value in before:
            delattr(Tensor, name) if value is _MISSING else setattr(Tensor, name, value)


_MISSING = object()


def _on_device(tensor: Tensor) -> Tensor | None:
    found = _copies.get(id(tensor))
    return None if found is None else found.of(tensor)


def _patched_to(to: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def patched(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        copied = _on_device(tensor)
        if copied is not None:
            device, dtype, _, memory_format = torch._C._nn._parse_to(*arguments, **options)
            if device is not None and _is_on(copied, device):
                return _call(to, copied, dtype or copied.dtype, copy=True, memory_format=memory_format or torch.preserve_format)
        return _call(to, tensor, *arguments, **options)

    return patched


def _patched_cuda(cuda: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def patched(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        copied, device = _on_device(tensor), options.get("device", arguments[0] if arguments else None)
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
        if copied is None or not _is_on(copied, device):
            return _call(cuda, tensor, *arguments, **options)
        return copied.clone(memory_format=options.get("memory_format", torch.preserve_format))

    return patched


def _call(method: Callable[..., Tensor], tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """The result of torch's ``method``. A subclass would get the patched one, which it does not know: torch looks it up by name."""
    if type(tensor) is Tensor:
        return method(tensor, *arguments, **options)
    found: Tensor = type(tensor).__torch_function__(method, (type(tensor),), (tensor, *arguments), options)
    return found


def _is_on(tensor: Tensor, device: torch.device) -> bool:
    """Whether ``tensor`` is on ``device``, by default the current one of its type."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return tensor.device == device
