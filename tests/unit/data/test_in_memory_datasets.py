"""In-memory datasets: read from files or generated reproducibly."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import sample_datasets
import torch
from torch import nn

from ddpbench.data.datasets import cifar10, files, mnist
from ddpbench.data.generated import arrays
from ddpbench.data.in_memory import InMemoryDataset
from ddpbench.data.normalize import make_normalize

CPU = torch.device("cpu")


def test_cifar10_pixel_layout_is_preserved(tmp_path: Path) -> None:
    root = sample_datasets.cifar10(tmp_path)
    read = cifar10.read(str(root / "cifar-10-batches-py"), "train")
    raw = cifar10._unpickle(root / "cifar-10-batches-py" / "data_batch_2")[b"data"]
    assert read.samples[sample_datasets.CIFAR10_BATCH + 3, 5, 7].tolist() == [raw[3, channel * 1024 + 5 * 32 + 7] for channel in range(3)]
    assert read.labels.tolist() == [number % 10 for number in range(sample_datasets.CIFAR10_BATCH)] * 5
    assert (read.dataset, len(read.labels), read.generated) == ("cifar10", 100, False)
    assert len(cifar10.read(str(root), "held-out").labels) == sample_datasets.CIFAR10_BATCH


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_pixel_layout_is_preserved(packed: bool, tmp_path: Path) -> None:
    root = sample_datasets.mnist(tmp_path, packed)
    ramp = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 251
    for old in (root / "MNIST" / "raw").glob("t10k*"):
        old.unlink()
    sample_datasets.idx(root / "MNIST" / "raw" / "t10k-images-idx3-ubyte", ramp, packed)
    sample_datasets.idx(root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte", np.array([7, 0, 9]), packed)
    read = mnist.read(str(root / "MNIST" / "raw"), "held-out")
    assert np.array_equal(read.samples[..., 0], ramp)
    assert (read.samples.shape, read.labels.tolist()) == ((3, 28, 28, 1), [7, 0, 9])
    assert len(mnist.read(str(root), "train").labels) == 50


def test_unpacked_file_takes_precedence_over_packed(tmp_path: Path) -> None:
    raw = sample_datasets.mnist(tmp_path) / "MNIST" / "raw"
    sample_datasets.idx(raw / "train-labels-idx1-ubyte", np.full(sample_datasets.MNIST_IMAGES, 3))
    assert set(mnist.read(str(tmp_path), "train").labels) == {3}


@pytest.mark.parametrize(
    ("dataset", "held_out", "digests"),
    [("cifar10", 10_000, ("9b9ebf26", "e7f38581")), ("mnist", 10_000, ("04b77414", "88df680c"))],
)
def test_generated_dataset_is_reproducible_and_as_large_as_the_original(dataset: str, held_out: int, digests: tuple[str, str]) -> None:
    parts = files.load_train(dataset, None), files.load_held_out(dataset, None)
    assert [len(part.labels) for part in parts if part] == [{"cifar10": 50_000, "mnist": 60_000}[dataset], held_out]
    for part, digest in zip(parts, digests, strict=True):
        assert part
        assert hashlib.sha1(part.samples.tobytes()).hexdigest()[:8] == digest
        assert part.generated
        assert part.generated
        assert (np.bincount(part.labels) / len(part.labels)).tolist() == pytest.approx([0.1] * 10, abs=0.01)


@pytest.mark.parametrize("dataset", list(arrays.GENERATED))
def test_generated_dataset_is_learnable(dataset: str) -> None:
    train, held_out = files.load_train(dataset, None), files.load_held_out(dataset, None)
    assert held_out
    channels = train.samples.shape[-1]
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(channels, 16, 4, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()), nn.LazyLinear(10)
    )
    accuracy = trained(net, dataset, train, held_out, epochs=1, batch_size=64, samples=6400, lr=0.05)
    assert accuracy > 0.6, "chance is 0.1"


def test_disc_points_match_the_publication() -> None:
    points = files.points()
    assert points.samples.shape == (1000, 2)
    assert points.samples.mean(0) == pytest.approx([0, 0], abs=1e-6)
    assert points.samples.std(0) == pytest.approx([1, 1], abs=1e-6)
    assert points.labels.mean() == 0.131, "the published minority share, the error of predicting only the majority"
    inside, outside = points.samples[points.labels == 1], points.samples[points.labels == 0]
    corner = points.samples.min(0)
    assert np.linalg.norm(inside - corner, axis=1).max() < 1.1 * np.linalg.norm(outside - corner, axis=1).min(), "minority near the corner"
    assert not points.generated


@pytest.mark.parametrize(("layers", "error"), [(2, 0.025), (5, 0.025)])
def test_disc_is_learned_within_the_published_error(layers: int, error: float) -> None:
    from ddpbench.record.names import import_object
    from ddpbench.workloads.registry import find_workload

    spec, points = find_workload(f"disc-mlp-{layers}"), files.points()
    torch.manual_seed(0)
    net = import_object(spec.model)(None, spec.classes)
    assert 1 - trained(net, "disc", points, points, epochs=100, batch_size=100, samples=1000, lr=spec.lr) < error


def trained(
    net: nn.Module,
    dataset: str,
    train: InMemoryDataset,
    held_out: InMemoryDataset,
    *,
    epochs: int,
    batch_size: int,
    samples: int,
    lr: float,
) -> float:
    """Held-out accuracy of ``net`` after plain SGD on the first ``samples`` of ``train``, in order."""
    finish = make_normalize(dataset, None if dataset == "disc" else train.samples.shape[1], False, CPU)
    inputs, labels = finish(torch.from_numpy(train.samples[:samples])), torch.from_numpy(train.labels[:samples])
    net(inputs[:2])
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for _ in range(epochs):
        for some, their in zip(inputs.split(batch_size), labels.split(batch_size), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(some), their).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        right = net(finish(torch.from_numpy(held_out.samples[:2000]))).argmax(1) == torch.from_numpy(held_out.labels[:2000])
    return float(right.float().mean())
