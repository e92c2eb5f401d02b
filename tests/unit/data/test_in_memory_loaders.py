"""In-memory datasets give the same batches from DataLoader and from device memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sample_datasets
import torch
from open_loaders import IMAGE_LOADERS, IN_MEMORY_LOADERS, memory_config, opened, take

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.crop import CropAndFlip, crop_indices
from ddpbench.data.loaders.tensor import DeviceResidentLoader, IndexStream
from ddpbench.data.normalize import NORMALIZATION
from ddpbench.record.loaders import find_loader

CLASSES = {"cifar10": 10, "mnist": 10, "disc": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    root = tmp_path_factory.mktemp("sets")
    return {"cifar10": sample_datasets.cifar10(root / "cifar"), "mnist": sample_datasets.mnist(root / "mnist"), "disc": None}


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("dataset", "shape"), [("cifar10", (3, 32, 32)), ("mnist", (1, 28, 28)), ("disc", (2,))])
def test_batch_has_expected_shape_dtype_and_layout(
    loader: str, channels_last: bool, dataset: str, shape: tuple[int, ...], folders: dict[str, Path | None]
) -> None:
    with opened(memory_config(loader, dataset, folders[dataset], channels_last=channels_last), dataset, classes=CLASSES[dataset]) as live:
        samples, labels = live.next_batch(lambda: None)
    assert (samples.shape, samples.dtype) == ((2, *shape), torch.float32)
    assert (labels.shape, labels.dtype) == ((2,), torch.int64)
    if len(shape) == 3:
        assert samples.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@pytest.mark.parametrize("dataset", list(CLASSES))
def test_unaugmented_batches_are_equal_between_loaders(dataset: str, folders: dict[str, Path | None]) -> None:
    taken = []
    for loader in IN_MEMORY_LOADERS:
        settled = memory_config(loader, dataset, folders[dataset], augment=False, batch_size=7, seed=3)
        with opened(settled, dataset, rank=1, world_size=2, classes=CLASSES[dataset]) as live:
            taken.append(take(live, 20))
            assert (live.data.loader, live.data.generated) == (loader, False)
    torch.testing.assert_close(taken[0][0], taken[1][0], rtol=0, atol=2e-6)
    assert torch.equal(taken[0][1], taken[1][1])


@pytest.mark.parametrize("loader", ["torch", "torch-uint8"])
def test_stopwatch_runs_once_per_batch_of_small_samples(
    loader: str, folders: dict[str, Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    laps: list[str] = []
    monkeypatch.setattr(Stopwatch, "lap", lambda watch, stage, lap=Stopwatch.lap: (laps.append(stage), lap(watch, stage)))
    with opened(memory_config(loader, "cifar10", folders["cifar10"], batch_size=7), "cifar10", classes=10) as live:
        take(live, 2)
        stats = live.pop_stats()
    assert laps == ["augment", "collate"] * 2
    assert stats is not None
    assert set(stats.cpu_s) == {"augment", "collate"}


@pytest.mark.parametrize("loader", IMAGE_LOADERS)
@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_pixels_match_the_files(loader: str, dataset: str, folders: dict[str, Path | None]) -> None:
    from ddpbench.data.datasets import files

    arrays, known = files.load_train(dataset, str(folders[dataset])), NORMALIZATION[dataset]
    settled = memory_config(loader, dataset, folders[dataset], augment=False, shuffle=False, batch_size=len(arrays.labels))
    with opened(settled, dataset, classes=10) as live:
        images, labels = take(live, 1)
        assert live.data == arrays.describe(live.data.loader)
    pixels = (images.permute(0, 2, 3, 1) * torch.tensor(known.std) + torch.tensor(known.mean)) * 255
    assert torch.equal(pixels.round().to(torch.uint8), torch.from_numpy(arrays.samples))
    assert torch.equal(labels, torch.from_numpy(arrays.labels))


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
@pytest.mark.parametrize("dataset", list(CLASSES))
def test_batches_are_bit_identical_for_the_same_seed(loader: str, dataset: str, folders: dict[str, Path | None]) -> None:
    drawn = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)  # transforms in the main process use the global generator
        with opened(memory_config(loader, dataset, folders[dataset], seed=seed), dataset, classes=CLASSES[dataset]) as live:
            drawn.append(take(live, 8))
    (samples, labels), (again, same_labels), (others, _) = drawn
    assert torch.equal(samples, again)
    assert torch.equal(labels, same_labels)
    assert not torch.equal(samples, others)


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
def test_ranks_cover_every_epoch(loader: str, folders: dict[str, Path | None]) -> None:
    world_size, share = 3, 17  # 50 images on 3 ranks: one repeated; batches of 2 cross epoch ends
    seen: list[list[float]] = []
    for rank in range(world_size):
        with opened(memory_config(loader, "mnist", folders["mnist"]), "mnist", rank=rank, world_size=world_size, classes=10) as live:
            seen.append(take(live, share)[0].sum((1, 2, 3)).tolist())
    for epoch in range(2):
        counts = Counter(round(image, 2) for own in seen for image in own[epoch * share : (epoch + 1) * share])
        assert len(counts) == sample_datasets.MNIST_IMAGES, "no image is missing"
        assert sum(counts.values()) == sample_datasets.MNIST_IMAGES + 1, "only padding is repeated"


@pytest.mark.parametrize("loader", IMAGE_LOADERS)
def test_unshuffled_epochs_are_in_order(loader: str, folders: dict[str, Path | None]) -> None:
    with opened(memory_config(loader, "cifar10", folders["cifar10"], shuffle=False, batch_size=30), "cifar10", classes=10) as live:
        assert take(live, 5)[1].tolist() == [number % 10 for number in range(150)]


@pytest.mark.parametrize("loader", IMAGE_LOADERS)
@pytest.mark.parametrize(("dataset", "image_size"), [("cifar10", 48), ("mnist", 14)])
def test_images_are_resized_to_image_size(loader: str, dataset: str, image_size: int, folders: dict[str, Path | None]) -> None:
    settled = memory_config(loader, dataset, folders[dataset], image_size=image_size)
    with opened(settled, dataset, classes=10) as live:
        assert take(live, 1)[0].shape[2:] == (image_size, image_size)


@pytest.mark.parametrize("loader", IMAGE_LOADERS)
def test_only_cifar10_is_cropped_and_flipped(loader: str, folders: dict[str, Path | None]) -> None:
    for dataset in CLASSES.keys() & set(find_loader(loader).datasets):
        taken = []
        for augment in (True, False):
            settled = memory_config(loader, dataset, folders[dataset], augment=augment, batch_size=50)
            with opened(settled, dataset, classes=CLASSES[dataset]) as live:
                taken.append(take(live, 1)[0])
        assert torch.equal(*taken) == (dataset != "cifar10")


def test_augmented_views_are_all_padded_crops_with_and_without_flip() -> None:
    image = torch.arange(1, 3 * 5 * 5 + 1, dtype=torch.uint8).view(1, 5, 5, 3)
    framed = torch.nn.functional.pad(image[0], (0, 0, 4, 4, 4, 4))
    crops = [framed[top : top + 5, left : left + 5] for top in range(9) for left in range(9)]
    plain, flipped = ({bytes(crop.flatten().tolist()) for crop in some} for some in (crops, [crop.flip(1) for crop in crops]))
    augmented = CropAndFlip(image, torch.Generator().manual_seed(0))
    seen = Counter(bytes(view.flatten().tolist()) for view in augmented[torch.zeros(9000, dtype=torch.int64)])
    assert len(crop_indices(5)) == len(seen) == 162
    assert set(seen) == plain | flipped, "exactly these views"
    assert 4200 < sum(seen[view] for view in flipped) < 4800, "half of the views are flipped"


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
def test_generated_dataset_replaces_unspecified_files(loader: str) -> None:
    with opened(memory_config(loader, "mnist"), "mnist", classes=10) as live:
        live.next_batch(lambda: None)
        assert live.data.generated
        assert (live.data.num_samples, live.data.dataset) == (60_000, "mnist")


def test_on_host_ready_is_called_once_per_batch(folders: dict[str, Path | None]) -> None:
    calls: list[int] = []
    with opened(memory_config("tensor", "cifar10", folders["cifar10"]), "cifar10", classes=10) as live:
        for batch in range(4):
            live.next_batch(lambda batch=batch: calls.append(batch))  # type: ignore[misc]
        assert (live.max_prefetched, live.worker_pids()) == (0, [])
    assert calls == [0, 1, 2, 3]


@pytest.mark.cuda
@pytest.mark.parametrize("dataset", list(CLASSES))
def test_resident_loader_never_synchronizes_with_the_gpu(dataset: str, folders: dict[str, Path | None]) -> None:
    device = torch.device("cuda", 0)
    with opened(memory_config("tensor", dataset, folders[dataset]), dataset, classes=CLASSES[dataset], device=device) as live:
        assert isinstance(live, DeviceResidentLoader)
        assert isinstance(live._indices, IndexStream)
        take(live, 3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(200):  # across epoch ends
                samples, labels = live.next_batch(lambda: None)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert samples.is_cuda
        assert labels.is_cuda


@pytest.mark.cuda
@pytest.mark.parametrize("dataset", list(CLASSES))
def test_gpu_batches_equal_cpu_batches(dataset: str, folders: dict[str, Path | None]) -> None:
    taken = []
    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        settled = memory_config("tensor", dataset, folders[dataset], augment=False)
        with opened(settled, dataset, classes=CLASSES[dataset], device=device) as live:
            taken.append([part.cpu() for part in take(live, 30)])
    torch.testing.assert_close(taken[0][0], taken[1][0], rtol=0, atol=2e-6)
    assert torch.equal(taken[0][1], taken[1][1])
