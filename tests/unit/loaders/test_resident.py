"""``resident``: the same batches, from data on the device; or the loader as it is, with the reason."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, MNIST
from torchvision.transforms import v2

from ddpbench.loaders import resident
from ddpbench.loaders.resident import ResidentDataset

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
ROWS = TensorDataset(torch.randn(50, 3), torch.arange(50), torch.rand(50, 2, 2).half())


def cifar(transform: Any, number: int = 40) -> CIFAR10:
    """CIFAR10 of torchvision, with generated pixels in place of the downloaded ones."""
    made = CIFAR10.__new__(CIFAR10)
    generator = np.random.default_rng(1)
    made.data = generator.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
    made.targets = generator.integers(0, 10, number).tolist()
    made.transform, made.target_transform = transform, None
    return made


def mnist(transform: Any) -> MNIST:
    made = MNIST.__new__(MNIST)
    made.data = torch.randint(0, 256, (40, 28, 28), dtype=torch.uint8)
    made.targets = torch.randint(0, 10, (40,))
    made.transform, made.target_transform = transform, None
    return made


def assert_same(found: DataLoader[Any], expected: DataLoader[Any], device: str, epochs: int = 2) -> None:
    assert isinstance(found.dataset, ResidentDataset)
    assert len(found) == len(expected)
    torch.manual_seed(5)
    before = [batch for _ in range(epochs) for batch in expected]
    torch.manual_seed(5)
    after = [batch for _ in range(epochs) for batch in found]
    assert len(before) == len(after) > 0
    for old, new in zip(before, after, strict=True):
        assert type(new) is type(old)
        assert len(new) == len(old)
        for a, b in zip(old, new, strict=True):
            assert (type(b), b.dtype, b.device.type, b.is_contiguous()) == (Tensor, a.dtype, device, True)
            assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 8},
        {"batch_size": 8, "shuffle": True},
        {"batch_size": 8, "shuffle": True, "drop_last": True, "num_workers": 1},
        {"batch_size": 1, "sampler": WeightedRandomSampler(torch.rand(50).tolist(), 20)},
        {"batch_sampler": BatchSampler(RandomSampler(ROWS), 7, False)},
        {"batch_size": 4, "sampler": [-1, 3, -50, 49, 0]},
        {"batch_size": 8, "pin_memory": True},
    ],
    ids=["in order", "shuffled", "workers", "weighted", "batch sampler", "negative indices", "pinned"],
)
def test_batches_of_tensors_are_the_same(options: dict[str, Any], device: str) -> None:
    if options.get("pin_memory") and device == "cpu":
        pytest.skip("without a GPU, nothing is pinned")
    assert_same(resident(DataLoader(ROWS, **options), device), DataLoader(ROWS, **options), device)


NORMALIZE = ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "transform",
    [
        v1.ToTensor(),
        v1.Compose([v1.ToTensor(), v1.Normalize(*NORMALIZE)]),
        v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(*NORMALIZE)]),
        v1.PILToTensor(),
        v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMALIZE)]),
        v2.Compose([v1.RandomHorizontalFlip(1.0), v2.PILToTensor(), v2.RandomVerticalFlip(1.0)]),
        v1.Compose([v1.RandomCrop(32), v1.Compose([v1.ToTensor()])]),
    ],
    ids=["v1", "v1 normalized", "v1 converted", "bytes", "v2", "flipped", "nested"],
)
def test_pixels_of_images_are_the_same(transform: Any, device: str) -> None:
    def loader(dataset: Dataset[Any]) -> DataLoader[Any]:
        """Its order does not depend on what transforms draw."""
        return DataLoader(dataset, 16, shuffle=True, generator=torch.Generator().manual_seed(1))

    for dataset in (cifar(transform), Subset(Subset(cifar(transform), range(0, 40, 2)), [3, 1, 9, 9, 0])):
        assert_same(resident(loader(dataset), device), loader(dataset), device)


def test_digits_have_a_channel() -> None:
    dataset = mnist(v1.Compose([v1.ToTensor(), v1.Normalize((0.13,), (0.31,))]))
    assert_same(resident(DataLoader(dataset, 16), "cpu"), DataLoader(dataset, 16), "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [v1, v2])
@pytest.mark.parametrize("padding", [4, (1, 3), (0, 1, 2, 3)])
def test_every_random_crop_is_one_that_torchvision_could_draw(kind: Any, padding: Any, device: str) -> None:
    """Among all places each is drawn about as often, with a padding of that width on the same side."""
    crop = kind.RandomCrop(32, padding=padding, fill=7)
    image = Image.fromarray(cifar(None, 1).data[0])
    torch.manual_seed(1)
    to_tensor = v1.PILToTensor()
    possible = {to_tensor(crop(image)).numpy().tobytes() for _ in range(4000)}
    dataset = cifar(v1.Compose([crop, v1.PILToTensor()]), 1)
    loader = resident(DataLoader(dataset, 500, sampler=[0] * 2000), device)
    drawn = [each.cpu().numpy().tobytes() for images, _ in loader for each in images]
    left, top, right, bottom = {4: (4, 4, 4, 4), (1, 3): (1, 3, 1, 3)}.get(padding, padding)
    places = (left + right + 1) * (top + bottom + 1)
    assert len(possible) == len(set(drawn)) == places
    assert set(drawn) == possible
    assert min(map(drawn.count, possible)) > 2000 / places / 4


def test_flips_are_drawn_for_each_image() -> None:
    dataset = cifar(v1.Compose([v1.RandomHorizontalFlip(0.25), v1.PILToTensor()]), 1)
    own = resident(DataLoader(dataset, 1000, sampler=[0] * 1000), "cpu")
    ((images, _),) = own
    plain = torch.as_tensor(dataset.data[0]).permute(2, 0, 1)
    is_flipped = [torch.equal(each, plain.flip(-1)) for each in images]
    assert all(flipped or torch.equal(each, plain) for flipped, each in zip(is_flipped, images, strict=True))
    assert 180 < sum(is_flipped) < 320


def test_random_transforms_are_reproducible_and_take_nothing_from_the_default_generator() -> None:
    def epochs(number: int) -> list[Tensor]:
        torch.manual_seed(3)
        dataset = cifar(v1.Compose([v1.RandomCrop(32, 4), v1.RandomHorizontalFlip(), v1.ToTensor()]))
        loader = resident(DataLoader(dataset, 8, shuffle=True), "cpu")
        return [images for _ in range(number) for images, _ in loader] + [torch.rand(3)]

    first, again = epochs(2), epochs(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    torch.manual_seed(3)
    plain = DataLoader(ROWS, 8, sampler=RandomSampler(range(40)))
    for _ in range(2):
        list(plain)
    assert torch.equal(first[-1], torch.rand(3)), "as many draws as of a loader without random transforms"


def test_sampler_of_the_script_keeps_its_say() -> None:
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=1, seed=4)
    own, found = DataLoader(ROWS, 5, sampler=sampler), resident(DataLoader(ROWS, 5, sampler=sampler), "cpu")
    assert (found.sampler, found.batch_size, found.drop_last) == (sampler, 5, False)
    epochs = []
    for epoch in range(3):
        found.sampler.set_epoch(epoch)
        epochs.append([indices.tolist() for _, indices, _ in found])
        assert epochs[-1] == [indices.tolist() for _, indices, _ in own]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("device", DEVICES)
def test_batches_own_their_memory(device: str) -> None:
    loader = resident(DataLoader(ROWS, 10), device)
    kept = [batch[0] for batch in loader]
    before = ROWS.tensors[0].clone()
    for each in kept:
        each.zero_()
    assert torch.equal(ROWS.tensors[0], before)
    assert torch.equal(torch.cat([batch[0].cpu() for batch in loader]), before)


def test_epochs_may_be_left_early_and_overlap() -> None:
    loader = resident(DataLoader(ROWS, 10, sampler=SequentialSampler(ROWS)), "cpu")
    first = iter(loader)
    next(first)
    assert [indices[0].item() for _, indices, _ in loader] == [0, 10, 20, 30, 40]
    assert next(first)[1][0] == 10
    del first
    assert [(a[1][0].item(), b[1][0].item()) for a, b in zip(loader, loader, strict=True)] == [(each, each) for each in range(0, 50, 10)]


def test_dataset_can_still_be_asked() -> None:
    dataset = cifar(v1.ToTensor())
    found = resident(DataLoader(dataset, 8), "cpu").dataset
    assert found.targets is dataset.targets
    assert len(found) == 40
    assert torch.equal(found[3][0], dataset[3][0])
    with pytest.raises(AttributeError):
        found.no_such_attribute  # noqa: B018


def test_transform_may_change_between_epochs() -> None:
    dataset = cifar(v1.ToTensor())
    loader = resident(DataLoader(dataset, 40), "cpu")
    assert next(iter(loader))[0].dtype == torch.float32
    dataset.transform = v1.PILToTensor()
    assert next(iter(loader))[0].dtype == torch.uint8
    dataset.transform = v1.Compose([v1.ToTensor(), v1.Lambda(lambda image: 2 * image)])
    with pytest.warns(UserWarning, match="collates samples: its transform Lambda is not known for batches"):
        batch = next(iter(loader))
    assert torch.equal(batch[0], default_collate([dataset[each] for each in range(40)])[0])


def test_sample_that_does_not_exist_is_an_error_of_the_script() -> None:
    loader = resident(DataLoader(ROWS, 2, sampler=[0, 50]), "cpu")
    with pytest.raises(IndexError, match="50 of the dataset"):
        list(loader)


def test_dataset_can_be_changed_and_used_again() -> None:
    loader = resident(DataLoader(cifar(v1.ToTensor()), 8), "cpu")
    loader.dataset.transform = v1.Compose([v1.ToTensor(), v1.Normalize(*NORMALIZE)])
    found = next(iter(loader))[0]
    assert torch.equal(found[3], loader.dataset[3][0])
    for again in (
        DataLoader(loader.dataset, 8),
        DataLoader(Subset(loader.dataset, range(8)), 8),
        DataLoader(loader.dataset, 8, num_workers=1),
    ):
        assert torch.equal(next(iter(again))[0], found)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("is_used", [False, True])
def test_copies_have_their_own_data(copied: Any, is_used: bool) -> None:
    loader = resident(DataLoader(ROWS, 10), "cpu")
    expected = [batch[1].tolist() for batch in loader] if is_used else [list(range(first, first + 10)) for first in range(0, 50, 10)]
    assert [batch[1].tolist() for batch in copied(loader)] == expected


def test_loader_can_be_built_again_as_libraries_do() -> None:
    """From the attributes of the loader, with a sampler of their own: every rank has its part."""
    loader = resident(DataLoader(ROWS, 5, shuffle=True), "cpu")
    parts = []
    for rank in range(2):
        sampler = DistributedSampler(loader.dataset, 2, rank, shuffle=False)
        again = DataLoader(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=loader.collate_fn, drop_last=loader.drop_last)
        parts.append(sorted(number for _, numbers, _ in again for number in numbers.tolist()))
    assert parts == [list(range(0, 50, 2)), list(range(1, 50, 2))]


@pytest.mark.cuda
def test_data_beyond_half_of_the_free_memory_stay_on_the_host() -> None:
    free, _ = torch.cuda.mem_get_info()
    rows = TensorDataset(torch.zeros(2**27 + 2**26, 4, dtype=torch.uint8))
    own = DataLoader(rows, 4)
    earlier = resident(own)
    taken = torch.empty(free - 2**30, dtype=torch.uint8, device="cuda")
    with pytest.warns(UserWarning, match="leaves the loader as it is: .* do not fit into half of the free memory of cuda:0"):
        assert resident(own) is own
    with pytest.warns(UserWarning, match="collates samples: .* do not fit"):
        assert next(iter(earlier))[0].device.type == "cpu"
    del taken
    torch.cuda.empty_cache()


@pytest.mark.cuda
def test_batches_are_complete_for_a_reader_on_another_stream() -> None:
    """As that of a prefetcher, which does not wait for what the training has queued."""
    loader, other = resident(DataLoader(ROWS, 50)), torch.cuda.Stream()
    next(iter(loader))
    long, matrix = torch.zeros((), device="cuda"), torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        long = long + (matrix @ matrix).sum()
    found = next(iter(loader))[0]
    with torch.cuda.stream(other):
        read = found.clone()
    other.synchronize()
    assert torch.equal(read.cpu(), ROWS.tensors[0])


class OwnDigits(MNIST):
    """A class of the script's own."""


class OwnLoader(DataLoader[Any]):
    pass


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index * index


def derived() -> MNIST:
    made = mnist(v1.ToTensor())
    made.__class__ = OwnDigits
    return made


def with_target_transform() -> MNIST:
    made = mnist(v1.ToTensor())
    made.target_transform = lambda target: target + 1
    return made


def with_targets(targets: Any) -> CIFAR10:
    made = cifar(v1.ToTensor())
    made.targets = targets
    return made


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: OwnLoader(ROWS, 4), "its class is OwnLoader"),
        (lambda: DataLoader(ROWS, batch_size=None), "no batches of samples"),
        (lambda: DataLoader(ROWS, 4, collate_fn=lambda samples: samples), "a collate function of its own"),
        (lambda: DataLoader(ROWS, 4, num_workers=1, worker_init_fn=print), "worker_init_fn"),
        (lambda: DataLoader(Squares(), 4), "class of its dataset is Squares"),
        (lambda: DataLoader(derived(), 4), "class of its dataset is OwnDigits"),
        (lambda: DataLoader(with_target_transform(), 4), "target_transform"),
        (lambda: DataLoader(with_targets([0.5] * 40), 4), "not one integer for each"),
        (lambda: DataLoader(with_targets(np.zeros(40, dtype=np.int32)), 4), "not one integer for each"),
        (lambda: DataLoader(mnist(None), 4), "no transform that returns tensors"),
        (lambda: DataLoader(mnist(v1.RandomHorizontalFlip()), 4), "returns no tensors"),
        (lambda: DataLoader(cifar(v1.Compose([v1.Resize(64), v1.ToTensor()])), 4), "its transform Resize"),
        (lambda: DataLoader(cifar(v1.Compose([v1.ToTensor(), v1.Lambda(abs)])), 4), "its transform Lambda"),
        (lambda: DataLoader(cifar(v1.Compose([v1.RandomCrop(32, 4, padding_mode="reflect"), v1.ToTensor()])), 4), "RandomCrop"),
        (lambda: DataLoader(cifar(v1.Compose([v1.RandomCrop(32, 4, fill=(1, 2, 3)), v1.ToTensor()])), 4), "RandomCrop"),
        (lambda: DataLoader(cifar(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float16, scale=True)])), 4), "its transform ToDtype"),
        (lambda: DataLoader(TensorDataset(torch.ones(4, requires_grad=True)), 4), "need gradients"),
    ],
)
def test_other_loaders_stay_as_they_are(loader: Any, reason: str) -> None:
    own = loader()
    with pytest.warns(UserWarning, match=f"leaves the loader as it is: .*{reason}"):
        assert resident(own) is own


def test_workers_are_not_needed_and_nothing_warns(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = resident(DataLoader(ROWS, 8, num_workers=1, persistent_workers=True, prefetch_factor=4), "cpu")
        assert (loader.num_workers, loader.pin_memory, len(list(loader))) == (0, False, 7)
