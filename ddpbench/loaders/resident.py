"""A DataLoader whose data stay in memory on the device that trains, and are read a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from ddpbench.loaders.errors import NotSupportedError
from ddpbench.loaders.original import check_plain, current_device, ranks_on_this_node, sample_order, unwrapped
from ddpbench.loaders.side_stream import SideStream, hand_over
from ddpbench.machine.device import free_gpu_bytes
from ddpbench.machine.forwarding import ForwardsAttributes
from ddpbench.machine.host import MAX_MEMORY_FRACTION, free_memory_bytes


def resident(loader: DataLoader[Any], device: torch.device | str | None = None) -> DataLoader[Any]:
    """A DataLoader of the same batches as ``loader``, from data that stay on ``device``; by default the current GPU, else the CPU.

    The dataset is a ``TensorDataset``, CIFAR or MNIST of torchvision, or a ``Subset`` of one, with transforms of single images that can be
    applied to whole batches. Samplers, order, structure, shapes and dtypes stay, and pixels bit for bit; random transforms draw from a
    generator of their own. There are no workers. The batches are on ``device``, and own their memory. The data are copied there for the
    first batch: what changes in the dataset after that, other than its transform, has no effect.

    If part of ``loader`` is not supported, or the data take more than half of the free memory of ``device``, warns with the reason and
    returns ``loader`` itself.
    """
    try:
        check_resident(loader)
        dataset = ResidentDataset(loader.dataset, None if device is None else torch.device(device))
        dataset.check_memory()
    except NotSupportedError as problem:
        warnings.warn(f"ddpbench.loaders.resident leaves the loader as it is: {problem}", stacklevel=2)
        return loader
    return DataLoader(dataset, collate_fn=collate_resident, generator=loader.generator, **sample_order(loader))


def check_resident(loader: DataLoader[Any]) -> None:
    """Raises NotSupportedError if ``resident`` would leave ``loader`` as it is, whatever the memory."""
    check_plain(loader)
    source, _ = unwrapped(loader.dataset)
    if type(source) is TensorDataset:
        if not source.tensors or any(each.requires_grad or each.layout != torch.strided for each in source.tensors):
            raise NotSupportedError("its dataset has no tensors, or sparse ones, or some that need gradients")
    elif not _is_of_torchvision(source):
        raise NotSupportedError(f"the class of its dataset is {type(source).__name__}")
    elif source.target_transform is not None:
        raise NotSupportedError("its dataset has a target_transform")
    elif torch.as_tensor(source.data[:1]).dtype != torch.uint8:
        raise NotSupportedError("its images are not uint8")
    elif not _are_class_numbers(source.targets):
        raise NotSupportedError("its targets are not one integer for each image")
    else:
        _batch_transforms(source.transform)


def collate_resident(samples: Any) -> Any:
    """The batch of ``samples``: at once if they are those of a ResidentDataset, else as by ``default_collate``."""
    return samples.batch() if isinstance(samples, ResidentSamples) else default_collate(samples)


class ResidentSamples(Sequence[Any]):
    """Samples of a ResidentDataset that need not be fetched one by one."""

    def __init__(self, dataset: ResidentDataset, indices: Sequence[int]) -> None:
        self._dataset, self._indices = dataset, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: Any) -> Any:
        return self._dataset[self._indices[place]]

    def batch(self) -> Any:
        """All of them, as ``default_collate`` would make it."""
        return self._dataset.batch(self._indices)


class ResidentDataset(ForwardsAttributes, Dataset[Any]):
    """``dataset`` with batches of its data on ``device``. Single samples, and all attributes, are those of ``dataset``.

    With ``falls_back``, samples are collated if the data do not fit into memory any more, or the transform has become unknown.
    """

    def __init__(self, dataset: Any, device: torch.device | None, falls_back: bool = True) -> None:
        source, indices = unwrapped(dataset)
        self.__dict__.update(_dataset=dataset, _source=source, _indices=indices, _device=device, _falls_back=falls_back)
        self.__dict__.update(_fields=None, _generator=None, _stream=None, _is_left_alone=False)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> ResidentSamples:
        return ResidentSamples(self, indices)

    def check_memory(self) -> None:
        """Raises NotSupportedError if the data do not fit."""
        device = self._device or current_device()
        num_bytes, free = self._num_bytes(), _free_bytes(device)
        if num_bytes > MAX_MEMORY_FRACTION * free:
            raise NotSupportedError(f"{num_bytes / 1e9:.1f} GB of data do not fit into half of the free memory of {device}")

    def batch(self, indices: Sequence[int]) -> Any:
        """The samples at ``indices``, as ``default_collate`` would make a batch of them."""
        if not self._is_left_alone:
            try:
                return self._resident_batch(torch.as_tensor(indices, dtype=torch.long))
            except NotSupportedError as problem:
                if not self._falls_back:
                    raise
                self.__dict__.update(_is_left_alone=True, _fields=None)
                warnings.warn(f"ddpbench.loaders.resident collates samples: {problem}", stacklevel=2)
        return default_collate([self._dataset[each] for each in indices])

    def _resident_batch(self, rows: Tensor) -> list[Tensor]:
        """On a GPU it is complete when it is returned: a script may read it on any stream."""
        steps = () if isinstance(self._source, TensorDataset) else _batch_transforms(self._source.transform)
        if self._fields is None:
            self._move()
        rows = _checked(rows, len(self._fields[0]))
        batch: list[Tensor] = self._stream.run(lambda: self._gathered(rows, steps))
        hand_over(batch)
        return batch

    def _gathered(self, rows: Tensor, steps: Sequence[Any]) -> list[Tensor]:
        rows = rows.to(self._fields[0].device, non_blocking=True)
        first, *others = (each.index_select(0, rows) for each in self._fields)
        for step in steps:
            first = step(first, self._generator)
        return [first, *others]

    def _move(self) -> None:
        """Copy the data to the device, where random transforms get a generator. Raises NotSupportedError if they do not fit."""
        self.check_memory()
        device = self._device or current_device()
        rows = None if self._indices is None else torch.as_tensor(self._indices, dtype=torch.long)
        moved = [(each if rows is None else each[rows.to(each.device)]).to(device) for each in _fields(self._source)]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.__dict__.update(
            _fields=moved, _stream=SideStream(device), _generator=torch.Generator(device).manual_seed(torch.initial_seed())
        )

    def _num_bytes(self) -> int:
        if isinstance(self._source, TensorDataset):
            row = sum(each[:1].nbytes for each in self._source.tensors)
        else:
            row = self._source.data[:1].nbytes + torch.long.itemsize
        return row * len(self._dataset)

    def __getstate__(self) -> Mapping[str, Any]:
        """A copy in another process copies the data itself."""
        return {**self.__dict__, "_fields": None, "_generator": None, "_stream": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)


def _checked(rows: Tensor, number: int) -> Tensor:
    """``rows``, all counted from the start. Raises IndexError: on a GPU, a row that does not exist would end the process."""
    if not len(rows):
        return rows
    if rows.min() < 0:
        rows = torch.where(rows < 0, rows + number, rows)
    if rows.min() < 0 or rows.max() >= number:
        raise IndexError(f"the sampler asks for a sample that is not among the {number} of the dataset")
    return rows


def _is_of_torchvision(source: Any) -> bool:
    """Whether it is CIFAR or MNIST as torchvision has it; not a class of the script's own that is derived from these."""
    if not type(source).__module__.startswith("torchvision.datasets."):
        return False
    from torchvision import datasets

    known = (datasets.CIFAR10, datasets.CIFAR100, datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST)
    return type(source) in known


def _are_class_numbers(targets: Any) -> bool:
    """Whether a batch of them is int64: a list of Python's integers, or what MNIST has, which makes such of every target."""
    if isinstance(targets, Tensor):
        return targets.ndim == 1 and not targets.is_floating_point()
    return isinstance(targets, list) and all(type(each) is int for each in targets)


def _batch_transforms(transform: Any) -> Sequence[Any]:
    if transform is None:
        raise NotSupportedError("its dataset has no transform that returns tensors")
    from ddpbench.loaders.batch_transforms import batch_transforms, flattened  # torchvision, which they import, takes a second

    return batch_transforms(flattened(transform))


def _fields(source: Any) -> list[Tensor]:
    """What a sample consists of, each as one tensor with a row per sample; images as N x C x H x W."""
    if isinstance(source, TensorDataset):
        return list(source.tensors)
    images = torch.as_tensor(source.data)
    images = images.permute(0, 3, 1, 2) if images.ndim == 4 else images.unsqueeze(1)
    return [images.contiguous(), torch.as_tensor(source.targets, dtype=torch.long)]


def _free_bytes(device: torch.device) -> float:
    """Of the host, the share of one of its ranks."""
    if device.type == "cuda":
        return free_gpu_bytes(device)
    return free_memory_bytes() / ranks_on_this_node()
