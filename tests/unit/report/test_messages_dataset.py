"""What a loader reads, in words."""

from __future__ import annotations

import pytest

from ddpbench.record.record import DatasetInfo
from ddpbench.report.messages.dataset import dataset_text

FOLDER = {"dataset": "imagenet", "file_kind": "jpegs", "num_samples": 1_281_167}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (DatasetInfo(loader="torch", **FOLDER), "ImageNet folder, 1,281,167 JPEGs"),
        (DatasetInfo(loader="torch", generated=True, **FOLDER), "generated ImageNet-like dataset, 1,281,167 JPEGs"),
        (DatasetInfo(loader="torch", file_kind="images", num_samples=3), "image folder, 3 images"),
        (
            DatasetInfo(loader="torch", **FOLDER, skipped_extensions={".txt": 1000, "": 1, ".a": 1, ".b": 1, ".c": 1}),
            "ImageNet folder, 1,281,167 JPEGs, 1,004 skipped (.a, .b, .c, .txt)",
        ),
        (DatasetInfo(loader="tensor", dataset="cifar10", num_samples=50_000), "CIFAR-10, 50,000 images"),
        (DatasetInfo(loader="tensor", dataset="disc", num_samples=1000), "1,000 points in and around a disc"),
        (DatasetInfo(loader="synthetic", num_batches=1), "synthetic batch on the device"),
        (DatasetInfo(loader="synthetic", num_batches=50), "50 synthetic batches on the device"),
        (DatasetInfo(loader="my:train", num_samples=10), "batches of my:train, which shards them itself"),
        (
            DatasetInfo(loader="replay", replayed_loader="torch", num_batches=16, **FOLDER),
            "16 batches of torch in host memory: ImageNet folder, 1,281,167 JPEGs",
        ),
        (
            DatasetInfo(loader="replay", replayed_loader="my:train", num_batches=16),
            "16 batches of my:train in host memory: batches of my:train, which shards them itself",
        ),
        (DatasetInfo(loader="torch", dataset="of another version", num_samples=5), "image dataset, 5 images"),
    ],
)
def test_dataset_is_described(data: DatasetInfo, text: str) -> None:
    assert dataset_text(data) == text
