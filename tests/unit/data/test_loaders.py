"""Every loader gives each rank its shard of the images, complete and in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sample_datasets
import torch
from open_loaders import ALL_LOADERS, FILE_LOADERS, RUNNABLE_FILE_LOADERS, config, opened, take
from PIL import Image

from ddpbench.data.datasets import image_folder
from ddpbench.data.normalize import NORMALIZATION
from ddpbench.data.preflight import dataset_fingerprint
from ddpbench.workloads.registry import WORKLOADS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def one_a_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirteen single-colour images, one distinct colour per label."""
    return sample_datasets.image_tree(tmp_path_factory.mktemp("one_a_class"), classes=13, images=1, texture=0)


@pytest.mark.parametrize("loader", ALL_LOADERS)
@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_have_the_requested_shape_dtype_and_layout(loader: str, channels_last: bool, tree: Path) -> None:
    with opened(config(loader, tree, channels_last=channels_last, batch_size=3)) as live:
        for _ in range(3):
            images, labels = live.next_batch(lambda: None)
            assert (images.shape, images.dtype) == ((3, 3, 32, 32), torch.float32)
            assert images.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
            assert (labels.shape, labels.dtype) == ((3,), torch.int64)


@pytest.mark.parametrize("loader", ALL_LOADERS)
def test_on_host_ready_is_called_once_per_batch(loader: str, tree: Path) -> None:
    calls: list[int] = []
    with opened(config(loader, tree)) as live:
        for batch in range(4):
            live.next_batch(lambda batch=batch: calls.append(batch))  # type: ignore[misc]
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize("loader", FILE_LOADERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_cover_every_epoch_and_reshuffle(loader: str, workers: int, one_a_class: Path) -> None:
    world_size, epochs, share = 3, 4, 5  # 13 images on 3 ranks: 5 each, two repeated; batches of 2 cross epoch ends
    labels = []
    for rank in range(world_size):
        with opened(config(loader, one_a_class, workers=workers), rank=rank, world_size=world_size) as live:
            labels.append(take(live, epochs * share // 2)[1].tolist())
    for epoch in range(epochs):
        seen = Counter(label for own in labels for label in own[epoch * share : (epoch + 1) * share])
        assert set(seen) == set(range(13)), "no image is missing"
        assert sum(seen.values()) == 13 + 2, "only padding is repeated"
    orders = {tuple(label for own in labels for label in own[epoch * share : (epoch + 1) * share]) for epoch in range(epochs)}
    assert len(orders) == epochs


@pytest.mark.parametrize("loader", ALL_LOADERS)
def test_seed_determines_pixels_labels_and_order(loader: str, tree: Path) -> None:
    drawn = []
    for seed in (7, 7, 8):
        with opened(config(loader, tree, seed=seed, workers=2)) as live:
            drawn.append(take(live, 8))
    (images, labels), (again, same_labels), (others, other_labels) = drawn
    assert torch.equal(images, again)
    assert torch.equal(labels, same_labels)
    assert not torch.equal(images, others)
    assert not torch.equal(labels, other_labels)


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_pixels_are_rgb_and_normalized(loader: str, one_a_class: Path) -> None:
    with opened(config(loader, one_a_class, batch_size=13)) as live:
        images, labels = take(live, 1)
    imagenet = NORMALIZATION["imagenet"]
    pixels = images.permute(0, 2, 3, 1) * torch.tensor(imagenet.std) + torch.tensor(imagenet.mean)
    expected = torch.tensor([sample_datasets.colour(int(label)) for label in labels]).view(13, 1, 1, 3)
    assert (pixels * 255 - expected).abs().max() < 4, "JPEG preserves a plain colour within a few levels"


@pytest.mark.parametrize("workers", [0, 2])
def test_all_loaders_give_the_same_images_in_the_same_order(workers: int, one_a_class: Path) -> None:
    """On every rank, across several epochs."""
    for rank in range(3):
        labels_by_loader = {}
        for loader in RUNNABLE_FILE_LOADERS:
            with opened(config(loader, one_a_class, workers=workers, batch_size=4), rank=rank, world_size=3) as live:
                images, labels = take(live, 5)
            labels_by_loader[loader] = labels.tolist()
            nearest = [min(range(13), key=lambda label: distance(image, label)) for image in images]
            assert nearest == labels_by_loader[loader], "labels match images"
        assert all(order == labels_by_loader["torch"] for order in labels_by_loader.values())


def distance(image: torch.Tensor, label: int) -> float:
    """Colour distance of an image from its class colour."""
    known = NORMALIZATION["imagenet"]
    levels = (image.mean((1, 2)) * torch.tensor(known.std) + torch.tensor(known.mean)) * 255
    return float((levels - torch.tensor(sample_datasets.colour(label))).abs().sum())


@pytest.mark.parametrize("loader", [each for each in FILE_LOADERS if each != "torch"])
@pytest.mark.parametrize("image_size", [32, 8])
def test_augmentation_statistics_match_torch(loader: str, image_size: int, tmp_path: Path) -> None:
    """At size 8 some crops of these 80 x 60 images are decoded at half size."""
    tree = sample_datasets.image_tree(tmp_path, grain=2)  # fine grain, which shows the resize filter and crop sizes
    statistics = []
    for each in ("torch", loader):
        with opened(config(each, tree, batch_size=16, workers=2, image_size=image_size)) as live:
            images = take(live, 60)[0].double()
        flattened = images.transpose(0, 1).flatten(1)
        across = images.diff(dim=-1).abs().mean()  # sharpness of the resize
        statistics.append(torch.cat([flattened.mean(1), flattened.std(1), across.view(1)]))
    torch.testing.assert_close(*statistics, atol=0.01, rtol=0.02)


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_half_of_the_images_are_flipped(loader: str, tmp_path: Path) -> None:
    for label in range(4):
        (tmp_path / f"class{label}").mkdir()
        Image.linear_gradient("L").rotate(90).save(tmp_path / f"class{label}" / "dark_to_bright.jpg")
    with opened(config(loader, tmp_path, batch_size=4)) as live:
        images, _ = take(live, 50)
    flipped = images[..., :16].mean((1, 2, 3)) > images[..., 16:].mean((1, 2, 3))
    assert 80 < flipped.sum() < 120, "of 200"


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_unaugmented_images_are_center_cropped_and_not_flipped(loader: str, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    Image.linear_gradient("L").rotate(90).save(tmp_path / "class" / "dark_to_bright.jpg", quality=100)
    with opened(config(loader, tmp_path, augment=False, image_size=224)) as live:
        images, _ = take(live, 2)
    assert (images - images[0]).abs().max() == 0
    known = NORMALIZATION["imagenet"]
    across = (images[0, 0].mean(0) * known.std[0] + known.mean[0]) * 255
    assert torch.allclose(across, torch.arange(16.0, 240.0), atol=2), "the central 224 of 256 px"


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_unshuffled_epochs_are_in_order(loader: str, one_a_class: Path) -> None:
    with opened(config(loader, one_a_class, shuffle=False, batch_size=13)) as live:
        assert take(live, 2)[1].tolist() == [*range(13), *range(13)]


def test_synthetic_batch_is_constant_and_differs_between_ranks() -> None:
    with opened(config("synthetic")) as live, opened(config("synthetic"), rank=1, world_size=2) as other:
        first, second, elsewhere = (loader.next_batch(lambda: None) for loader in (live, live, other))
        assert first[0] is second[0]
        assert first[1] is second[1]
        assert not torch.equal(first[0], elsewhere[0])
        assert (live.max_prefetched, live.data.num_samples, live.data.num_batches) == (0, None, 1)


@pytest.mark.parametrize("dataset", ["imagenet", "cifar10", "mnist", "disc", "gemm"])
def test_synthetic_batches_fit_the_workloads_of_their_dataset(dataset: str) -> None:
    for spec in (spec for spec in WORKLOADS.values() if spec.dataset == dataset):
        settled = config("synthetic", image_size=spec.image_size, channels_last=spec.convolutional)
        with opened(settled, dataset, classes=spec.classes) as live:
            inputs, labels = live.next_batch(lambda: None)
        assert inputs.shape == (2, *spec.input_shape(None))
        assert (labels.dtype, labels.shape) == ((torch.float32, (2, spec.classes)) if spec.loss == "mse" else (torch.int64, (2,)))


def test_fifty_matrix_batches_are_resident_and_cycled() -> None:
    with opened(config("synthetic", image_size=None), "gemm", classes=8) as live:
        assert live.data.num_batches == 50
        (first, target), *others = [live.next_batch(lambda: None) for _ in range(50)]
        assert not any(torch.equal(first, inputs) or torch.equal(target, labels) for inputs, labels in others)
        assert live.next_batch(lambda: None)[0] is first


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_record_describes_the_dataset(loader: str, tree: Path) -> None:
    with opened(config(loader, tree)) as live:
        assert (live.data.loader, live.data.dataset, live.data.file_kind, live.data.num_samples) == (loader, "imagenet", "jpegs", 16)
        assert live.data.file_kind == "jpegs"


def test_class_may_be_named_train_next_to_other_classes(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").touch()
    assert image_folder.read_index(str(tmp_path)).labels == [0, 1]


def test_image_folder_is_indexed_once_and_fingerprinted_by_file_names(tmp_path: Path) -> None:
    trees = [sample_datasets.image_tree(tmp_path / name) for name in ("here", "there", "elsewhere")]
    (trees[2] / "train" / "n00000001" / "2.JPEG").rename(trees[2] / "train" / "n00000001" / "4.JPEG")
    assert image_folder.read_index(str(trees[0])) is image_folder.read_index(str(trees[0]))
    here, there, elsewhere = (dataset_fingerprint(config("torch", tree), "imagenet") for tree in trees)
    assert here.startswith("16 images, ")
    assert here == there != elsewhere
    assert dataset_fingerprint(config("synthetic"), "imagenet") == dataset_fingerprint(config("torch"), "cifar10") == ""


def test_image_folder_without_train_and_with_other_images(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "cat" / "young").mkdir(parents=True)
    (tmp_path / "dog").mkdir()
    (tmp_path / ".cache").mkdir()
    for name in ("cat/b.png", "cat/young/a.jpg", "cat/notes.txt", "dog/c.JPG"):
        (tmp_path / name).touch()
    read = image_folder.read_index(str(tmp_path))
    assert (read.dataset, len(read.files), read.skipped_extensions, read.file_kind) == ("", 3, {".txt": 1}, "images")
    assert [str(Path(file).relative_to(tmp_path)) for file in read.files] == ["cat/b.png", "cat/young/a.jpg", "dog/c.JPG"]
    assert read.labels == [0, 0, 1]
