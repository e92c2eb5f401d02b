"""A DataLoader whose data stay in memory on the device that trains, and are read a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from ddpbench.loaders.errors import NotSupportedError
from ddpbench.machine.host import MAX_MEMORY_FRACTION, free_memory_bytes


def resident(loader: DataLoader[Any], device: torch.device | str | None = None) -> DataLoader[Any]:
    """A DataLoader of the same batches as ``loader``, from data that stay on ``device``; by default the present GPU, else the CPU.

    The dataset is a ``TensorDataset``, CIFAR or MNIST of torchvision, or a ``Subset`` of one, with transforms of single images that can be
    applied to whole batches. Samplers, order, structure, shapes and dtypes stay, and pixels bit for bit; random transforms draw from a
    generator of their own. There are no workers. The batches are on ``device``, and own their memory. The data are copied there for the
    first batch: what changes in the dataset after that, other than its transform, has no effect.

    If part of ``loader`` is not supported, warns with the reason and returns ``loader`` itself. If the data take more than half of the
    free memory of ``device``, warns, and collates samples of ``dataset``.
    """
    try:
        check_resident(loader)
    except NotSupportedError as problem:
        warnings.warn(f"ddpbench.loaders.resident leaves the loader as it is: {problem}", stacklevel=2)
        return loader
    dataset, collate = resident_parts(loader, device)
    return DataLoader(dataset, batch_sampler=loader.batch_sampler, collate_fn=collate, generator=loader.generator)


def check_resident(loader: DataLoader[Any]) -> None:
    """Raises NotSupportedError if ``resident`` would leave ``loader`` as it is."""
    if type(loader) is not DataLoader:
        raise NotSupportedError(f"it is a {type(loader).__name__}")
    if loader.batch_sampler is None:
        raise NotSupportedError("it makes no batches of samples")
    if loader.collate_fn is not default_collate:
        raise NotSupportedError("it has a collate function of its own")
    if loader.worker_init_fn is not None:
        raise NotSupportedError("it has a worker_init_fn, which may change the dataset")
    source, _ = _unwrapped(loader.dataset)
    if type(source) is TensorDataset:
        if not source.tensors or any(each.requires_grad or each.layout != torch.strided for each in source.tensors):
            raise NotSupportedError("its dataset has no tensors, or sparse ones, or some that need gradients")
    elif not _is_of_torchvision(source):
        raise NotSupportedError(f"its dataset is a {type(source).__name__}")
    elif source.target_transform is not None:
        raise NotSupportedError("its dataset has a target_transform")
    elif torch.as_tensor(source.data[:1]).dtype != torch.uint8:
        raise NotSupportedError("its images are no bytes")
    else:
        _batch_transforms(source.transform)


def resident_parts(loader: DataLoader[Any], device: torch.device | str | None) -> tuple[ResidentDataset, Callable[[Any], Any]]:
    """The dataset and the collate function of ``resident``, for a loader that it supports."""
    return ResidentDataset(loader.dataset, None if device is None else torch.device(device)), _as_it_is


def _as_it_is(batch: Any) -> Any:
    return batch


class ResidentDataset(Dataset[Any]):
    """The batches of ``dataset``, from its data on ``device``. Single samples, and other attributes, are those of ``dataset``."""

    def __init__(self, dataset: Any, device: torch.device | None) -> None:
        self._dataset, self._device = dataset, device
        self._source, self._indices = _unwrapped(dataset)
        self._fields: Sequence[Tensor] | None = None  # on the device, once there is a batch
        self._is_left_alone = False
        self._transform: Any = None  # the last one, and what it is for batches
        self._steps: Sequence[Callable[[Tensor, torch.Generator], Tensor]] = ()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """The batch of the samples at ``indices``, as ``default_collate`` would make it."""
        if not self._is_left_alone:
            try:
                return self._resident_batch(torch.as_tensor(indices, dtype=torch.long))
            except NotSupportedError as problem:
                self._is_left_alone, self._fields = True, None
                warnings.warn(f"ddpbench.loaders.resident collates samples: {problem}", stacklevel=2)
        return default_collate([self._dataset[each] for each in indices])

    def _resident_batch(self, rows: Tensor) -> list[Tensor]:
        fields = self._fields = self._fields or self._moved()
        device = fields[0].device
        rows = _checked(rows, len(fields[0])).to(device, non_blocking=True)
        first, *others = (each.index_select(0, rows) for each in fields)
        for step in self._present_steps():
            first = step(first, self._generator)
        return [first, *others]

    def _moved(self) -> list[Tensor]:
        """The data on the device, where random transforms get a generator. Raises NotSupportedError if they do not fit."""
        device = self._device or _present_device()
        self._generator = torch.Generator(device).manual_seed(torch.initial_seed())
        fields = _fields(self._source)
        rows = None if self._indices is None else torch.as_tensor(self._indices, dtype=torch.long)
        num_bytes = sum(each.nbytes if rows is None else each[:1].nbytes * len(rows) for each in fields)
        if num_bytes > MAX_MEMORY_FRACTION * _free_bytes(device):
            raise NotSupportedError(f"{num_bytes / 1e9:.1f} GB of data do not fit into half of the free memory of {device}")
        moved = [(each if rows is None else each[rows.to(each.device)]).to(device) for each in fields]
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # they are there, whichever stream reads them
        return moved

    def _present_steps(self) -> Sequence[Callable[[Tensor, torch.Generator], Tensor]]:
        """For the present transform, which a script may change. Raises NotSupportedError if it is not known any more."""
        transform = getattr(self._source, "transform", None)
        if transform is not self._transform:
            self._transform, self._steps = transform, _batch_transforms(transform)
        return self._steps

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)


def _checked(rows: Tensor, number: int) -> Tensor:
    """``rows``, all counted from the start. Raises IndexError: on a GPU, a row that does not exist would end the process."""
    if not len(rows):
        return rows
    if rows.min() < 0:
        rows = torch.where(rows < 0, rows + number, rows)
    if rows.min() < 0 or rows.max() >= number:
        raise IndexError(f"the sampler asks for a sample that is not among the {number} of the dataset")
    return rows


def _unwrapped(dataset: Any) -> tuple[Any, Sequence[int] | None]:
    """The dataset inside of subsets, and the indices that these leave of it; None for all."""
    if type(dataset) is not Subset:
        return dataset, None
    inner, indices = _unwrapped(dataset.dataset)
    return inner, dataset.indices if indices is None else [indices[each] for each in dataset.indices]


def _is_of_torchvision(source: Any) -> bool:
    """Whether it is CIFAR or MNIST as torchvision has it; not a class of the script's own that is derived from these."""
    if not type(source).__module__.startswith("torchvision.datasets."):
        return False
    from torchvision import datasets

    known = (datasets.CIFAR10, datasets.CIFAR100, datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST)
    return type(source) in known


def _batch_transforms(transform: Any) -> Sequence[Callable[[Tensor, torch.Generator], Tensor]]:
    if transform is None:
        raise NotSupportedError("its dataset has no transform that returns tensors")
    from ddpbench.loaders.batch_transforms import batch_transforms  # torchvision, which it imports, takes a second

    return batch_transforms(transform)


def _fields(source: Any) -> list[Tensor]:
    """What a sample consists of, each as one tensor with a row per sample; images as N x C x H x W."""
    if isinstance(source, TensorDataset):
        return list(source.tensors)
    images = torch.as_tensor(source.data)
    images = images.permute(0, 3, 1, 2).contiguous() if images.ndim == 4 else images.unsqueeze(1)
    return [images, torch.as_tensor(source.targets, dtype=torch.long)]


def _present_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory_bytes()
