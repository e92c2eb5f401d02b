"""The loader ``torch`` with one slow stage."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.datasets import image_folder
from ddpbench.data.datasets.samples import Collate, ImageFolderDataset
from ddpbench.data.image_decoding import decode
from ddpbench.data.loader import DeviceTransform, HostBatch, HostLoader
from ddpbench.data.loaders.replay import make_replay
from ddpbench.data.loaders.workers import DataLoaderAdapter, make_data_loader
from ddpbench.data.normalize import to_memory_format
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.loaders import LoaderSpec
from ddpbench.record.record import DatasetInfo

TAIL = 64
"""One in TAIL images is slow if there is a tail."""

BESIDES = 2**24
"""Extra bytes pinned with a batch if pinning is slow."""


@dataclass(frozen=True)
class Spoilt:
    """Slow parts: bytes/s per reader; CPU milliseconds per image by stage, or per batch in the trainer
    or in the pinning thread; delay of the tail."""

    bytes_per_s: float | None = None
    decode_ms: float = 0.0
    augment_ms: float = 0.0
    collate_ms: float = 0.0
    take_over_ms: float = 0.0
    pin_ms: float = 0.0
    tail_ms: float = 0.0
    rank: int | None = None  # the only slow rank
    replayed: bool = False  # from pageable host memory

    def on(self, rank: int) -> Spoilt:
        return self if self.rank in (None, rank) else Spoilt()


def work(milliseconds: float) -> None:
    """Use this much CPU time, regardless of contention."""
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        pass


class Throttled(io.RawIOBase):
    """The file ``path``, throttled to ``bytes_per_s``."""

    def __init__(self, path: str, bytes_per_s: float) -> None:
        self._file, self._bytes_per_s = open(path, "rb", buffering=0), bytes_per_s  # noqa: SIM115

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        time.sleep(count / self._bytes_per_s)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def throttled(path: str, bytes_per_s: float | None) -> bytes:
    """The full content of a file."""
    with Throttled(path, bytes_per_s or float("inf")) as file:
        return file.read()


class SpoiltSamples(ImageFolderDataset):
    """Images of a tree, only decoded and resized."""

    def __init__(self, index: Any, side: int, watch: Stopwatch, spoilt: Spoilt) -> None:
        super().__init__(index, self._seen, watch, max_skipped=0)
        self._side, self._spoilt = side, spoilt

    def _load_image(self, file: str) -> Tensor:
        self._watch.start()
        content = throttled(file, self._spoilt.bytes_per_s)
        self._watch.lap("read")
        return self._transform(content, file, self._watch)

    def _seen(self, content: bytes, file: str, watch: Stopwatch) -> Tensor:
        image = decode(content, file)
        work(self._spoilt.decode_ms)
        if self._spoilt.tail_ms and crc32(file.encode()) % TAIL == 0:
            time.sleep(self._spoilt.tail_ms / 1000)
        watch.lap("decode")
        pixels = np.asarray(image.resize((self._side, self._side)), dtype=np.float32) / 255
        work(self._spoilt.augment_ms)
        watch.lap("augment")
        return torch.from_numpy(pixels).permute(2, 0, 1)


@dataclass(frozen=True)
class SlowlyPinned(HostBatch):
    pin_ms: float = 0.0

    def pin_memory(self) -> HostBatch:
        """Pin extra memory, which releases the GIL like copying a large batch."""
        end = time.perf_counter() + self.pin_ms / 1000
        while time.perf_counter() < end:
            torch.empty(BESIDES, dtype=torch.uint8).pin_memory()
        return super().pin_memory()


class SpoiltCollate(Collate):
    def __init__(self, watch: Stopwatch, spoilt: Spoilt) -> None:
        super().__init__(watch)
        self._spoilt = spoilt

    def __call__(self, samples: list[Any]) -> Any:
        self._watch.start()
        work(len(samples) * self._spoilt.collate_ms)
        self._watch.lap("collate")
        batch = super().__call__(samples)
        if isinstance(batch, BenchError):
            return batch
        return SlowlyPinned(batch.samples, batch.labels, batch.worker_timing, self._spoilt.pin_ms)


class SpoiltWorkers(DataLoaderAdapter):
    """Workers with extra work per batch in the trainer process."""

    def __init__(self, data_loader: DataLoader[Any], data: DatasetInfo, device_transform: DeviceTransform, take_over_ms: float) -> None:
        super().__init__(data_loader, data, device_transform)
        self._take_over_ms = take_over_ms

    def next_batch(self) -> HostBatch:
        batch = super().next_batch()
        work(self._take_over_ms)
        return batch


def open_spoilt(spoilt: Spoilt, config: ResolvedConfig, shard: Shard) -> DataLoaderAdapter:
    assert config.data_dir
    watch, tree, here = Stopwatch(), image_folder.read_index(config.data_dir), spoilt.on(shard.rank)
    samples = SpoiltSamples(tree, config.image_size or 0, watch, here)
    plan = DistributedBatchSampler(len(samples), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    batches = make_data_loader(samples, plan, watch, config, shard.rank, shard.device)
    batches.collate_fn = SpoiltCollate(watch, here)
    data = tree.describe("spoilt")
    return SpoiltWorkers(batches, data, lambda images: to_memory_format(images, config.channels_last), here.take_over_ms)


def _loader(name: str, spoilt: Spoilt) -> LoaderSpec:
    def opened(config: ResolvedConfig, shard: Shard) -> HostLoader:
        workers = open_spoilt(spoilt, config, shard)
        return make_replay(workers, torch.device("cpu")) if spoilt.replayed else workers

    globals()[f"open_{name}"] = opened
    where = f"situations.spoilt:open_{name}"
    return LoaderSpec(name=name, help=name, factory=where, reads_dataset=True, datasets=("imagenet",), worker_type="processes")


fine = _loader("fine", Spoilt())
slow_storage = _loader("slow_storage", Spoilt(bytes_per_s=100e3))
slow_decode = _loader("slow_decode", Spoilt(decode_ms=8.0))
heavy_augmentation = _loader("heavy_augmentation", Spoilt(augment_ms=8.0))
slow_collate = _loader("slow_collate", Spoilt(collate_ms=8.0))
some_decode = _loader("some_decode", Spoilt(decode_ms=3.0))
slow_take_over = _loader("slow_take_over", Spoilt(take_over_ms=40.0))
heavy_tail = _loader("heavy_tail", Spoilt(tail_ms=800.0))
slow_pinning = _loader("slow_pinning", Spoilt(pin_ms=40.0))
pageable = _loader("pageable", Spoilt(replayed=True))
slow_on_one_rank = _loader("slow_on_one_rank", Spoilt(bytes_per_s=100e3, rank=1))


class Asked(Dataset[tuple[Tensor, int]]):
    """Samples with a remote latency of 12 ms and unlimited concurrency."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.012)
        return torch.zeros(3, 32, 32), index % 10


def far_away(config: ResolvedConfig) -> DataLoader[Any]:
    return DataLoader(Asked(), config.batch_size, num_workers=config.workers, drop_last=True)


class Bright(Asked):
    """The same, with values that the ``dim`` model rejects."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return image + 99, label


def dark_for_one_worker(config: ResolvedConfig, rank: int) -> DataLoader[Any]:
    """Like ``far_away``, but ``Bright`` on the second rank with several workers."""
    if rank == 1 and config.workers > 1:
        return DataLoader(Bright(), config.batch_size, num_workers=config.workers, drop_last=True)
    return far_away(config)


def own_folder(config: ResolvedConfig) -> DataLoader[Any]:
    """A user-defined ImageFolder loader on slow storage that reads and decodes in one function."""
    steps = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    images = ImageFolder(f"{config.data_dir}/train", steps, loader=_slowly)
    return DataLoader(images, config.batch_size, num_workers=config.workers, drop_last=True, shuffle=True)


def _slowly(file: str) -> Image.Image:
    return decode(throttled(file, 100e3), file)
