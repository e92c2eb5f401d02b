"""The files of a script's dataset, for the benchmark of its storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Subset


def dataset_files(dataset: Any) -> Sequence[str]:
    """The paths of the samples of torchvision's folders of files, and of subsets of them; empty for other datasets."""
    if isinstance(dataset, Subset):
        files = dataset_files(dataset.dataset)
        return [files[index] for index in dataset.indices] if files else []
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, list) or not samples:
        return []
    paths = [sample[0] if isinstance(sample, tuple) and sample else sample for sample in samples]
    return paths if all(isinstance(path, str) for path in paths) and os.path.isfile(paths[0]) else []


def common_folder(files: Sequence[str]) -> str:
    """The folder of all ``files``."""
    return os.path.commonpath([os.path.abspath(files[0]), os.path.abspath(files[-1])])
