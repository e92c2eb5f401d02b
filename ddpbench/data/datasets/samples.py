"""Samples by number, as DataLoader's workers ask for them, and the batches that they become; each stage is timed in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from ddpbench.data.datasets import files, image_folder
from ddpbench.data.datasets.image_folder import ImageTree
from ddpbench.data.images import content_of
from ddpbench.data.in_memory import Arrays
from ddpbench.data.loader import HostBatch
from ddpbench.data.stopwatch import Stopwatch
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Data
from ddpbench.record.resolved import Settled

Sample = tuple[Tensor, int]

View = Callable[[bytes, str, Stopwatch], Tensor]
"""From the bytes of an image file to a sample. Laps are decode and augment; raises BenchError naming the file, which is given for that."""

ArrayView = Callable[[npt.NDArray[Any]], Tensor]


@dataclass(frozen=True)
class SampleRecipe:
    """What the loader of that name does to a sample.

    ``of_tree`` is asked with the size of a sample and whether to augment it, ``of_memory`` with the data set before them.
    """

    loader: str
    of_tree: Callable[[int, bool], View]
    of_memory: Callable[[str, int | None, bool], ArrayView]


class TreeSamples(Dataset[Sample | BenchError]):
    """Images of a tree, read and decoded when asked for.

    In the place of a file that cannot be read comes the one after it. Where more than ``allowed`` of a batch could not be, or none
    at all can, the error comes instead of a sample.
    """

    def __init__(self, tree: ImageTree, view: View, watch: Stopwatch, allowed: int) -> None:
        self._tree, self._view, self._watch, self._allowed = tree, view, watch, allowed

    def __len__(self) -> int:
        return len(self._tree.files)

    def __getitem__(self, index: int) -> Sample | BenchError:
        problem = BenchError("no images")
        for number in chain(range(index, len(self)), range(index)):
            try:
                return self._pixels(self._tree.files[number]), self._tree.labels[number]
            except BenchError as unreadable:
                problem = unreadable
                self._watch.left_out.append(problem)
            if len({each.message for each in self._watch.left_out}) > self._allowed:
                return problem
        return BenchError(f"none of the {len(self):,} images can be read: {problem.message}", "is it the right folder? repair its files")

    def _pixels(self, file: str) -> Tensor:
        self._watch.start()
        content = content_of(file)
        self._watch.lap("read")
        return self._view(content, file, self._watch)


class ArraySamples(Dataset[Sample]):
    """Images or points that lie in memory."""

    def __init__(self, arrays: Arrays, view: ArrayView, watch: Stopwatch) -> None:
        self._arrays, self._view, self._watch = arrays, view, watch

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitem__(self, index: int) -> Sample:
        return self._view(self._arrays.samples[index]), int(self._arrays.labels[index])

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        """A batch's, in one lap: to read the clocks takes a part of the time that a small sample takes."""
        self._watch.start()
        samples = [self[index] for index in indices]
        self._watch.lap("augment")
        return samples


@dataclass(frozen=True)
class Unreadable:
    """In the place of a batch that there cannot be: why, and all files that were met on the way there."""

    problem: BenchError
    met: tuple[BenchError, ...]


class Collate:
    """One batch of the samples with its sheet, or the first error among them with every file that could not be read.

    An error travels as a result: raised in a worker it would arrive wrapped in the worker's traceback.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __call__(self, samples: list[Sample | BenchError]) -> HostBatch | Unreadable:
        self._watch.start()
        problem = next((sample for sample in samples if isinstance(sample, BenchError)), None)
        if problem:
            return Unreadable(problem, tuple(self._watch.left_out))
        images, labels = default_collate(samples)
        self._watch.lap("collate")
        return HostBatch(images, labels, self._watch.sheet())


def read_samples(recipe: SampleRecipe, config: Settled, dataset: str, watch: Stopwatch) -> tuple[TreeSamples | ArraySamples, Data]:
    """The training samples that ``config`` asks for, and which data they are."""
    if dataset != "imagenet":
        arrays = files.train(dataset, config.data_dir)
        view = recipe.of_memory(dataset, config.image_size, config.augment)
        return ArraySamples(arrays, view, watch), arrays.data(recipe.loader)
    assert config.data_dir, "checked"
    assert config.image_size, "images have a size"
    tree = image_folder.read(config.data_dir)
    seen = recipe.of_tree(config.image_size, config.augment)
    return TreeSamples(tree, seen, watch, config.skip_bad), tree.data(recipe.loader)
