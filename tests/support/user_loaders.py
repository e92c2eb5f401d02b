"""User-defined loaders, valid and invalid."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from ddpbench.record.config import ResolvedConfig

NOT_A_LOADER = [1, 2, 3]
IMAGES = 10


def numbered(side: int = 32) -> TensorDataset:
    """Ten images labelled by their number."""
    return TensorDataset(torch.randn(IMAGES, 3, side, side), torch.arange(IMAGES))


def shared_out(config: ResolvedConfig, rank: int, world_size: int) -> DataLoader[Any]:
    """A DataLoader with a DistributedSampler, as in a training script."""
    dataset = numbered()
    sampler = DistributedSampler(dataset, world_size, rank, seed=config.seed)
    workers, prefetch = config.workers, config.prefetch if config.workers else None
    return DataLoader(dataset, config.batch_size, sampler=sampler, num_workers=workers, prefetch_factor=prefetch)


def staying(config: ResolvedConfig) -> DataLoader[Any]:
    """A DataLoader with persistent workers."""
    return DataLoader(numbered(), config.batch_size, num_workers=config.workers, persistent_workers=True)


class Keeping(DataLoader[Any]):
    """A DataLoader that keeps one iterator, and thereby its workers, for all epochs."""

    def __iter__(self) -> Any:
        self.kept = self.__dict__.get("kept") or self.forever()
        return itertools.islice(self.kept, len(self))

    def forever(self) -> Iterator[Any]:
        batches = DataLoader(self.dataset, self.batch_size, num_workers=self.num_workers, persistent_workers=True)
        while True:
            yield from batches


def kept_by_its_class(config: ResolvedConfig) -> DataLoader[Any]:
    return Keeping(numbered(), config.batch_size, num_workers=config.workers)


class Numbers(Dataset[Any]):
    """Ten images with map-style access."""

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3, 32, 32), index


def talkative(config: ResolvedConfig) -> DataLoader[Any]:
    """A loader that prints, also in its workers."""
    print("hello from the function")
    return DataLoader(Talkative(), config.batch_size, num_workers=1)


class Talkative(Numbers):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        print("hello from a worker", flush=True)
        return super().__getitem__(index)


class Spoilt(Numbers):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise ValueError(f"bad sample {index}:\n  it has 3 bytes\nand needs: 10")


def spoilt(config: ResolvedConfig) -> DataLoader[Any]:
    """A loader whose workers raise."""
    return DataLoader(Spoilt(), config.batch_size, num_workers=1)


def one_by_one(config: ResolvedConfig) -> DataLoader[Any]:
    return DataLoader(Numbers(), config.batch_size)


def folder(config: ResolvedConfig) -> DataLoader[Any]:
    """A torchvision ImageFolder."""
    steps = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    images = ImageFolder(f"{config.data_dir}/train", steps)
    return DataLoader(images, config.batch_size, num_workers=config.workers, drop_last=True)


def without_questions() -> DataLoader[Any]:
    return DataLoader(numbered(), batch_size=2)


def generated(config: ResolvedConfig, **others: object) -> Iterator[list[Tensor]]:
    """A generator that ends and cannot be restarted."""
    for number in range(3):
        yield [torch.full((config.batch_size, 3, 32, 32), float(number)), torch.full((config.batch_size,), number)]


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.zeros(3, 32, 32), number) for number in range(4))


def streamed(config: ResolvedConfig) -> DataLoader[Any]:
    return DataLoader(Stream(), config.batch_size, num_workers=1)


class AtOnce(TensorDataset):
    """A dataset with ``__getitems__`` only."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        return [(self.tensors[0][index], self.tensors[1][index]) for index in indices]


def at_once(config: ResolvedConfig) -> DataLoader[Any]:
    return DataLoader(AtOnce(*numbered().tensors), config.batch_size)


def curious(config: ResolvedConfig, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> list[Any]:
    """Accepts every keyword argument and returns them in its labels."""
    labels = torch.tensor([len(dataset), classes - 1, rank, world_size])
    return [(torch.zeros(config.batch_size, 3, 32, 32, device=device), labels)]


def demanding(config: ResolvedConfig, mood: str) -> DataLoader[Any]:
    return without_questions()


def nothing() -> None:
    return None


def empty() -> list[Any]:
    return []


def dictionaries() -> list[Any]:
    return [{"pixels": torch.zeros(2, 3, 32, 32), "labels": torch.zeros(2)}]


def of_another_side() -> DataLoader[Any]:
    return DataLoader(numbered(side=16), batch_size=2)


def of_bytes() -> list[Any]:
    return [(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))]


def of_halves() -> list[Any]:
    return [(torch.zeros(2, 3, 32, 32, dtype=torch.float16), torch.zeros(2, dtype=torch.int64))]


def labelled(*labels: Any, dtype: torch.dtype = torch.int64) -> list[Any]:
    return [(torch.zeros(2, 3, 32, 32), torch.tensor(labels, dtype=dtype))]


def with_short_labels() -> list[Any]:
    return labelled(0, 1, dtype=torch.int32)


def with_a_column_of_labels() -> list[Any]:
    return labelled([0], [1])


def with_one_label_for_all() -> list[Any]:
    return [(torch.zeros(2, 3, 32, 32), torch.tensor(0))]


def with_a_class_too_many() -> list[Any]:
    return labelled(0, 1000)


def with_a_class_below_0() -> list[Any]:
    return labelled(-1, 999)


def matrices(config: ResolvedConfig, classes: int) -> list[Any]:
    """Samples and targets of the gemm workload."""
    return 3 * [(torch.zeros(config.batch_size, classes), torch.ones(config.batch_size, classes))]


def matrices_with_labels(config: ResolvedConfig, classes: int) -> list[Any]:
    return [(samples, torch.zeros(len(samples), dtype=torch.int64)) for samples, _ in matrices(config, classes)]


class CollectorStates(Dataset[tuple[Tensor, int]]):
    """The label is 1 if gc is enabled in the worker but inherited objects are frozen."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3, 32, 32), int(gc.isenabled() and not any(each is self for each in gc.get_objects()))


def collector_states(config: ResolvedConfig) -> DataLoader[Any]:
    return DataLoader(CollectorStates(), config.batch_size, num_workers=1)


class Broken(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        raise ValueError("there is a bug of mine")


def broken() -> DataLoader[Any]:
    return DataLoader(Broken(), batch_size=2)


def deaf() -> list[Any]:
    """A loader with a helper process that ignores SIGTERM and SIGINT."""
    multiprocessing.get_context("fork").Process(target=_hear_nothing, daemon=True).start()
    return [(torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))]


def _hear_nothing() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    time.sleep(600)
