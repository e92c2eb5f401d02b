"""Repeats batches of a script: from host memory, or so that its own ``.to()`` finds them on the device already."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddpbench.machine.host import free_memory_bytes
from ddpbench.record.errors import BenchError
from ddpbench.script.diagnose.batch_use import BatchUse
from ddpbench.script.diagnose.opened_batch import CannotOpen, OpenedBatch
from ddpbench.script.observe.source import num_samples

MAX_BATCHES = 16

MAX_MEMORY_FRACTION = 0.1
"""Fraction of the free memory, of the node and of the device, that kept batches may take."""


MAX_DEPTH = 5
MIN_SHAPES, MAX_SHAPES, STEADY = 20, 500, 0.9
"""Batches whose shapes are compared, and the fraction that must have the same ones."""


class RepeatedBatches:
    """Copies of up to ``MAX_BATCHES`` batches, handed out again and again.

    What is handed out is a new structure, of the same classes, with the same tensors. A script may change a tensor in place: its version
    shows it, and a fresh copy takes its place. ``ranks_per_node`` share the memory.
    """

    def __init__(self, ranks_per_node: int = 1) -> None:
        self._ranks_per_node = ranks_per_node
        self._batches: list[KeptBatch] = []
        self._next = 0
        self._is_full = False
        self.samples = 0  # in the batch that was handed out last
        self._shapes: Counter[Any] = Counter()  # of the script's own batches

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
        images = (each for each in self._batches[0].tensors if each.ndim == 4 and not each.is_nested)
        return next(((each.shape[2], each.shape[3]) for each in images), None)

    @property
    def has_steady_shapes(self) -> bool:
        """Whether enough batches were seen, and all but a few have the shapes of the others: the last of an epoch may be smaller."""
        seen = self._shapes.total()
        return seen >= MIN_SHAPES and None not in self._shapes and len(self._shapes) <= 2 and max(self._shapes.values()) >= STEADY * seen

    def keep(self, batch: Any, samples: int | None = None) -> None:
        """Copy ``batch``, which the script has not seen yet, if there is room. Raises BenchError if it cannot be copied.

        Without its number of ``samples``, that is the leading dimension of its first tensor.
        """
        if self._shapes.total() < MAX_SHAPES:
            self._shapes[_shapes(batch)] += 1
        if self._is_full:
            return
        kept = KeptBatch.of(batch, num_samples(batch) if samples is None else samples)
        room = MAX_MEMORY_FRACTION * free_memory_bytes() / self._ranks_per_node
        self._is_full = len(self._batches) + 1 >= MAX_BATCHES or (2 * kept.num_bytes + kept.array_bytes) * (len(self._batches) + 2) > room
        self._batches.append(kept)

    def next_batch(self, use: BatchUse | None = None) -> Any:
        """The next of the batches, in host memory; beside a GPU it is page-locked. ``use`` watches its tensors."""
        kept = self._batches[self._next % len(self._batches)]
        self._next += 1
        self.samples = kept.samples
        return kept.hand_out() if use is None else kept.hand_out(use.watched)

    def rewind(self) -> None:
        """The next batch is the first one."""
        self._next = 0

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
            id(tensor): DeviceCopy(kept, index, tensor.detach().to(device))
            for kept in self._batches
            for index, tensor in enumerate(kept.handed_out)
            if not tensor.is_cuda
        }
        try:
            with _patched_copies(copies):
                yield
        finally:
            self._batches = before


@dataclass
class KeptBatch:
    """One batch: what builds such a batch from tensors, its own tensors, and those that are handed out in their place."""

    samples: int
    build: Callable[[list[Tensor]], Any]
    tensors: list[Tensor]  # never handed out
    handed_out: list[Tensor]
    array_bytes: int = 0
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Any, samples: int) -> KeptBatch:
        """A copy of ``batch``, which has ``samples``. Raises BenchError if it cannot be copied."""
        try:
            opened = OpenedBatch(batch)
            copied = OpenedBatch(opened.build([_clone(each) for each in opened.tensors]))
            handed_out = [_clone(each) for each in copied.tensors]
            versions = [_version(each) for each in handed_out]
            copied.build(handed_out)
            return cls(samples, copied.build, copied.tensors, handed_out, copied.array_bytes, versions)
        except Exception as problem:  # of a class of the script: perhaps it can be copied by its own methods
            class_name = str(problem) if isinstance(problem, CannotOpen) else type(batch).__name__
            return cls(samples, _deep_copies(batch, class_name), [], [])

    @property
    def num_bytes(self) -> int:
        return sum(map(_num_bytes, self.handed_out))

    def hand_out(self, wrapped: Callable[[Tensor], Tensor] | None = None) -> Any:
        """The batch as it was kept, in a new structure, with each tensor ``wrapped``."""
        for index in range(len(self.handed_out)):
            if not self.is_unchanged(index):
                self._restore(index)
        return self.build([wrapped(each) for each in self.handed_out] if wrapped else self.handed_out)

    def is_unchanged(self, index: int) -> bool:
        """Whether the script has left the tensor at ``index`` as it was handed out."""
        tensor = self.handed_out[index]
        return _version(tensor) == self.versions[index] and not tensor.requires_grad

    def _restore(self, index: int) -> None:
        tensor, own = self.handed_out[index], self.tensors[index]
        is_reusable = type(own) is Tensor and tensor.is_leaf and not (own.requires_grad or own.is_nested or own.is_sparse)
        if is_reusable and tensor.shape == own.shape:
            tensor.requires_grad_(False).grad = None
            tensor.copy_(own)
        else:
            tensor = self.handed_out[index] = _clone(own)
        self.versions[index] = _version(tensor)


def _shapes(batch: Any, depth: int = 0) -> Any:
    """The shapes of all tensors in ``batch``; None if it has objects that may hold others, or is nested deeply."""
    if isinstance(batch, Tensor):
        return None if batch.is_nested else tuple(batch.shape)
    if isinstance(batch, Mapping):
        batch = [batch[key] for key in batch]
    if isinstance(batch, list | tuple) and depth < MAX_DEPTH:
        parts = tuple(_shapes(each, depth + 1) for each in batch)
        return None if None in parts else parts
    return () if isinstance(batch, str | int | float | bool) or batch is None else None


def _clone(tensor: Tensor) -> Tensor:
    """A copy of ``tensor``, in page-locked memory if there is a GPU.

    A tensor of a subclass, or of a layout, that has no page-locked version stays in pageable memory.
    """
    copied = tensor.detach().clone()
    if type(copied) is not type(tensor):
        copied = copy.deepcopy(tensor)
    if torch.cuda.is_initialized() and not tensor.is_cuda:
        with suppress(RuntimeError):
            pinned = copied.pin_memory()
            copied = pinned if type(pinned) is type(tensor) else copied
    vars(copied).update({name: value for name, value in vars(tensor).items() if name not in vars(copied)})
    return copied.requires_grad_(tensor.requires_grad)


def _deep_copies(batch: Any, class_name: str) -> Callable[[list[Tensor]], Any]:
    """What copies a batch that cannot be taken apart. Raises BenchError, with ``class_name``, if that is not possible either."""
    try:
        kept = copy.deepcopy(batch)
        copy.deepcopy(kept)
    except Exception as problem:
        raise BenchError(f"cannot repeat batches that hold objects of class {class_name}", "use ddpbench watch") from problem
    return lambda _: copy.deepcopy(kept)


def _version(tensor: Tensor) -> int:
    """Grows with every change in place, also of the tensors that a subclass is made of."""
    if type(tensor) is Tensor or not hasattr(tensor, "__tensor_flatten__"):
        return tensor._version
    names, _ = tensor.__tensor_flatten__()
    return tensor._version + sum(_version(getattr(tensor, name)) for name in names)


def _num_bytes(tensor: Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


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
