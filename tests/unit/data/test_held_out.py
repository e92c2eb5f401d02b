"""Held-out data: every sample once over all ranks, as it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import imagery
import pytest
import torch
from loading import IN_MEMORY, config, of_memory, opened, shard, take

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


@pytest.mark.parametrize("loader", IN_MEMORY)
@pytest.mark.parametrize("world_size", [1, 3, 20])
def test_the_shares_of_all_ranks_are_the_whole_set(loader: str, world_size: int, tmp_path: Path) -> None:
    settled = of_memory(loader, "mnist", imagery.mnist(tmp_path), batch_size=2)
    told = shares(settled, "mnist", 10, world_size)
    images = Counter(round(float(image.sum()), 2) for share in told for batch, _ in share for image in batch)
    assert len(images) == sum(images.values()) == imagery.MNIST_HELD_OUT, "each once"
    counts = [sum(len(labels) for _, labels in share) for share in told]
    assert max(counts) - min(counts) <= 1
    assert all(len(labels) <= 2 for share in told for _, labels in share)
    assert Counter(int(label) for share in told for _, labels in share for label in labels) == Counter(
        number % 10 for number in range(imagery.MNIST_HELD_OUT)
    )


@pytest.mark.parametrize("loader", IN_MEMORY)
def test_it_is_normalised_as_in_training_and_not_augmented(loader: str, tmp_path: Path) -> None:
    root = imagery.cifar10(tmp_path)
    held = (root / "cifar-10-batches-py" / "test_batch").read_bytes()
    for number in range(1, 6):
        (root / "cifar-10-batches-py" / f"data_batch_{number}").write_bytes(held)
    settled = of_memory(loader, "cifar10", root, batch_size=imagery.CIFAR10_BATCH, shuffle=False, augment=False, channels_last=True)
    ((images, labels),) = shares(settled, "cifar10", 10, 1)[0]
    with opened(settled, "cifar10", classes=10) as live:
        trained, trained_labels = take(live, 1)
    torch.testing.assert_close(images, trained, rtol=0, atol=2e-6)
    assert torch.equal(labels, trained_labels)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_augmentation_leaves_it_alone(tmp_path: Path) -> None:
    root = imagery.cifar10(tmp_path)
    (plain, _), (augmented, _) = (
        shares(of_memory("tensor", "cifar10", root, batch_size=50, augment=augment), "cifar10", 10, 1)[0][0] for augment in (False, True)
    )
    assert torch.equal(plain, augmented)


def test_the_disc_is_judged_on_the_points_it_trains_on() -> None:
    ((points, labels),) = shares(of_memory("tensor", "disc", batch_size=1000), "disc", 2, 1)[0]
    with opened(of_memory("tensor", "disc", batch_size=1000, shuffle=False), "disc", classes=2) as live:
        trained, trained_labels = take(live, 1)
    assert torch.equal(points, trained)
    assert torch.equal(labels, trained_labels)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_a_tree_bear_the_labels_of_training(workers: int, tmp_path: Path) -> None:
    imagery.image_tree(tmp_path, classes=4, images=2, texture=0)
    imagery.image_tree(tmp_path, classes=4, images=3, texture=0, part="val")
    for image in (tmp_path / "val" / "n00000001").iterdir():
        image.unlink()
    (tmp_path / "val" / "n00000001").rmdir()
    told = shares(config("torch", tmp_path, workers=workers), "imagenet", 1000, 2)
    assert Counter(int(label) for share in told for _, labels in share for label in labels) == {0: 3, 2: 3, 3: 3}
    assert [sum(len(labels) for _, labels in share) for share in told] == [5, 4]
    again = shares(config("torch", tmp_path, workers=workers), "imagenet", 1000, 2)
    assert torch.equal(told[0][0][0], again[0][0][0]), "nothing is drawn"


def test_a_class_that_training_has_not_is_named(tmp_path: Path) -> None:
    imagery.image_tree(tmp_path, classes=2)
    (tmp_path / "val" / "n00000009").mkdir(parents=True)
    with pytest.raises(UsageError, match="n00000009' is a class that the training set does not have"):
        check_loader(config("torch", tmp_path), "imagenet", 1000, 1)


def test_classes_without_an_image_are_refused_before_anything_trains(tmp_path: Path) -> None:
    imagery.image_tree(tmp_path, classes=2)
    empty = tmp_path / "val" / "n00000001"
    empty.mkdir(parents=True)
    with pytest.raises(UsageError, match="no images in the class folders of "):
        check_loader(config("torch", tmp_path), "imagenet", 1000, 1)
    image_folder.read_held_out_index.cache_clear()
    assert held_out_batches(config("own_loaders:generated", tmp_path), shard()) is None


def test_nothing_is_held_out_where_a_folder_of_ones_own_is_laid_out_otherwise(tmp_path: Path) -> None:
    assert held_out_batches(config("own_loaders:generated", tmp_path), shard()) is None
    assert held_out_batches(of_memory("own_loaders:generated", "gemm", tmp_path), shard("gemm", 8)) is None


@pytest.mark.cuda
def test_the_last_batch_may_be_smaller_on_a_gpu_too(tmp_path: Path) -> None:
    imagery.image_tree(tmp_path, classes=5, images=2, texture=0)
    imagery.image_tree(tmp_path, classes=5, images=2, texture=0, part="val")
    held = held_out_batches(config("torch", tmp_path, batch_size=4), shard(device=torch.device("cuda", 0)))
    assert held
    batches = [(images.cpu(), labels.cpu()) for images, labels in held]
    (expected,) = shares(config("torch", tmp_path, batch_size=4), "imagenet", 1000, 1)
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    for (images, labels), (same, same_labels) in zip(batches, expected, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, same_labels)


def test_nothing_is_held_out_of_synthetic_batches_or_where_the_folder_has_none(tmp_path: Path) -> None:
    imagery.image_tree(tmp_path / "tree")
    imagery.cifar10(tmp_path / "cifar")
    (tmp_path / "cifar" / "cifar-10-batches-py" / "test_batch").unlink()
    assert held_out_batches(config("torch", tmp_path / "tree"), shard()) is None
    assert held_out_batches(of_memory("torch", "cifar10", tmp_path / "cifar"), shard("cifar10", 10)) is None
    assert held_out_batches(of_memory("synthetic", "mnist"), shard("mnist", 10)) is None
