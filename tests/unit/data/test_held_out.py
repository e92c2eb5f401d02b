"""Held-out data: every sample once over all ranks, without augmentation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sample_datasets
import torch
from open_loaders import IN_MEMORY_LOADERS, config, memory_config, opened, shard, take

from ddpbench.data.datasets import image_folder
from ddpbench.data.preflight import check_loader
from ddpbench.data.validation import held_out_batches
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError


def shares(settled: ResolvedConfig, dataset: str, classes: int, world_size: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Every rank's batches."""
    found = [held_out_batches(settled, shard(dataset, classes, rank, world_size)) for rank in range(world_size)]
    assert all(share is not None for share in found)
    return [list(share) for share in found if share is not None]


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
@pytest.mark.parametrize("world_size", [1, 3, 20])
def test_shards_of_all_ranks_cover_the_dataset_once(loader: str, world_size: int, tmp_path: Path) -> None:
    settled = memory_config(loader, "mnist", sample_datasets.mnist(tmp_path), batch_size=2)
    rank_batches = shares(settled, "mnist", 10, world_size)
    images = Counter(round(float(image.sum()), 2) for share in rank_batches for batch, _ in share for image in batch)
    assert len(images) == sum(images.values()) == sample_datasets.MNIST_HELD_OUT, "each once"
    counts = [sum(len(labels) for _, labels in share) for share in rank_batches]
    assert max(counts) - min(counts) <= 1
    assert all(len(labels) <= 2 for share in rank_batches for _, labels in share)
    assert Counter(int(label) for share in rank_batches for _, labels in share for label in labels) == Counter(
        number % 10 for number in range(sample_datasets.MNIST_HELD_OUT)
    )


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
def test_held_out_data_are_normalized_but_not_augmented(loader: str, tmp_path: Path) -> None:
    root = sample_datasets.cifar10(tmp_path)
    held = (root / "cifar-10-batches-py" / "test_batch").read_bytes()
    for number in range(1, 6):
        (root / "cifar-10-batches-py" / f"data_batch_{number}").write_bytes(held)
    settled = memory_config(
        loader, "cifar10", root, batch_size=sample_datasets.CIFAR10_BATCH, shuffle=False, augment=False, channels_last=True
    )
    ((images, labels),) = shares(settled, "cifar10", 10, 1)[0]
    with opened(settled, "cifar10", classes=10) as live:
        trained, trained_labels = take(live, 1)
    torch.testing.assert_close(images, trained, rtol=0, atol=2e-6)
    assert torch.equal(labels, trained_labels)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_augmentation_does_not_change_held_out_data(tmp_path: Path) -> None:
    root = sample_datasets.cifar10(tmp_path)
    (plain, _), (augmented, _) = (
        shares(memory_config("tensor", "cifar10", root, batch_size=50, augment=augment), "cifar10", 10, 1)[0][0]
        for augment in (False, True)
    )
    assert torch.equal(plain, augmented)


def test_disc_is_validated_on_its_training_points() -> None:
    ((points, labels),) = shares(memory_config("tensor", "disc", batch_size=1000), "disc", 2, 1)[0]
    with opened(memory_config("tensor", "disc", batch_size=1000, shuffle=False), "disc", classes=2) as live:
        trained, trained_labels = take(live, 1)
    assert torch.equal(points, trained)
    assert torch.equal(labels, trained_labels)


@pytest.mark.parametrize("workers", [0, 1])
def test_held_out_labels_match_training_labels(workers: int, tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path, classes=4, images=2, texture=0)
    sample_datasets.image_tree(tmp_path, classes=4, images=3, texture=0, part="val")
    for image in (tmp_path / "val" / "n00000001").iterdir():
        image.unlink()
    (tmp_path / "val" / "n00000001").rmdir()
    rank_batches = shares(config("torch", tmp_path, workers=workers), "imagenet", 1000, 2)
    assert Counter(int(label) for share in rank_batches for _, labels in share for label in labels) == {0: 3, 2: 3, 3: 3}
    assert [sum(len(labels) for _, labels in share) for share in rank_batches] == [5, 4]
    again = shares(config("torch", tmp_path, workers=workers), "imagenet", 1000, 2)
    assert torch.equal(rank_batches[0][0][0], again[0][0][0]), "nothing is random"


def test_held_out_class_missing_in_training_is_named(tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path, classes=2)
    (tmp_path / "val" / "n00000009").mkdir(parents=True)
    with pytest.raises(UsageError, match="n00000009' is a class that the training set does not have"):
        check_loader(config("torch", tmp_path), "imagenet", 1000, 1)


def test_held_out_folder_without_images_is_rejected(tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path, classes=2)
    empty = tmp_path / "val" / "n00000001"
    empty.mkdir(parents=True)
    with pytest.raises(UsageError, match="no images in the class folders of "):
        check_loader(config("torch", tmp_path), "imagenet", 1000, 1)
    image_folder.read_held_out_index.cache_clear()
    assert held_out_batches(config("user_loaders:generated", tmp_path), shard()) is None


def test_user_loader_folder_has_no_held_out_data(tmp_path: Path) -> None:
    assert held_out_batches(config("user_loaders:generated", tmp_path), shard()) is None
    assert held_out_batches(memory_config("user_loaders:generated", "gemm", tmp_path), shard("gemm", 8)) is None


@pytest.mark.cuda
def test_last_batch_may_be_smaller_on_gpu(tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path, classes=5, images=2, texture=0)
    sample_datasets.image_tree(tmp_path, classes=5, images=2, texture=0, part="val")
    held = held_out_batches(config("torch", tmp_path, batch_size=4), shard(device=torch.device("cuda", 0)))
    assert held
    batches = [(images.cpu(), labels.cpu()) for images, labels in held]
    (expected,) = shares(config("torch", tmp_path, batch_size=4), "imagenet", 1000, 1)
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    for (images, labels), (same, same_labels) in zip(batches, expected, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, same_labels)


def test_synthetic_or_missing_held_out_data_give_none(tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path / "tree")
    sample_datasets.cifar10(tmp_path / "cifar")
    (tmp_path / "cifar" / "cifar-10-batches-py" / "test_batch").unlink()
    assert held_out_batches(config("torch", tmp_path / "tree"), shard()) is None
    assert held_out_batches(memory_config("torch", "cifar10", tmp_path / "cifar"), shard("cifar10", 10)) is None
    assert held_out_batches(memory_config("synthetic", "mnist"), shard("mnist", 10)) is None
