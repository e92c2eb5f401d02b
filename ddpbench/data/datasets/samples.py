"""Map-style datasets for DataLoader's workers, and their collate function; each stage is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.datasets import files, image_folder
from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.image_decoding import read_image_bytes
from ddpbench.data.in_memory import InMemoryDataset
from ddpbench.data.loader import HostBatch
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.record import DatasetInfo

Sample = tuple[Tensor, int]

Transform = Callable[[bytes, str, Stopwatch], Tensor]
"""From image bytes to a sample, with laps for decode and augment. Raises BenchError naming the file, its second argument."""

ArrayTransform = Callable[[npt.NDArray[Any]], Tensor]


@dataclass(frozen=True)
class TransformSpec:
    """How the loader named ``loader`` transforms samples.

    ``image_transform`` takes the size of a sample and whether to augment it; ``array_transform`` takes the dataset before these.
    """

    loader: str
    image_transform: Callable[[int, bool], Transform]
    array_transform: Callable[[str, int | None, bool], ArrayTransform]


class ImageFolderDataset(Dataset[Sample | BenchError]):
    """Images of a tree, read and decoded on demand.

    An unreadable file is replaced by the next one. If more than ``max_skipped`` files of a batch are unreadable, or all files of the
    tree, the item is the error instead of a sample.
    """

    def __init__(self, index: ImageFolderIndex, transform: Transform, watch: Stopwatch, max_skipped: int) -> None:
        self._index, self._transform, self._watch, self._max_skipped = index, transform, watch, max_skipped

    def __len__(self) -> int:
        return len(self._index.files)

    def __getitem__(self, index: int) -> Sample | BenchError:
        problem = BenchError("no images")
        for number in chain(range(index, len(self)), range(index)):
            try:
                return self._load_image(self._index.files[number]), self._index.labels[number]
            except BenchError as unreadable:
                problem = unreadable
                self._watch.skipped_files.append(problem)
            if len({each.message for each in self._watch.skipped_files}) > self._max_skipped:
                return problem
        return BenchError(f"none of the {len(self):,} images can be read: {problem.message}", "check --data-dir, or repair the files")

    def _load_image(self, file: str) -> Tensor:
        self._watch.start()
        content = read_image_bytes(file)
        self._watch.lap("read")
        return self._transform(content, file, self._watch)


class ArrayDataset(Dataset[Sample]):
    """Images or points in memory."""

    def __init__(self, arrays: InMemoryDataset, transform: ArrayTransform, watch: Stopwatch) -> None:
        self._arrays, self._transform, self._watch = arrays, transform, watch

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitem__(self, index: int) -> Sample:
        return self._transform(self._arrays.samples[index]), int(self._arrays.labels[index])

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        """A batch of samples, in one lap.

        Reading the clocks takes a noticeable part of the time of a small sample.
        """
        self._watch.start()
        samples = [self[index] for index in indices]
        self._watch.lap("augment")
        return samples


@dataclass(frozen=True)
class BadBatch:
    """Stands for a failed batch: the error, and all unreadable files met until then."""

    error: BenchError
    skipped_files: tuple[BenchError, ...]


class Collate:
    """Collates samples into a HostBatch with its timing, or a BadBatch with the first error.

    An error is returned as a result: raised in a worker, it would arrive wrapped in the worker's traceback.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __call__(self, samples: list[Sample | BenchError]) -> HostBatch | BadBatch:
        self._watch.start()
        problem = next((sample for sample in samples if isinstance(sample, BenchError)), None)
        if problem:
            return BadBatch(problem, tuple(self._watch.skipped_files))
        images, labels = default_collate(samples)
        self._watch.lap("collate")
        return HostBatch(images, labels, self._watch.finish_batch())


def make_dataset(
    transforms: TransformSpec, config: ResolvedConfig, dataset: str, watch: Stopwatch
) -> tuple[ImageFolderDataset | ArrayDataset, DatasetInfo]:
    """The training dataset that ``config`` selects, and its DatasetInfo."""
    if dataset != "imagenet":
        arrays = files.load_train(dataset, config.data_dir)
        array_transform = transforms.array_transform(dataset, config.image_size, config.augment)
        return ArrayDataset(arrays, array_transform, watch), arrays.describe(transforms.loader)
    assert config.data_dir, "checked"
    assert config.image_size, "image workloads have an image size"
    tree = image_folder.read_index(config.data_dir)
    image_transform = transforms.image_transform(config.image_size, config.augment)
    return ImageFolderDataset(tree, image_transform, watch, config.skip_bad), tree.describe(transforms.loader)
