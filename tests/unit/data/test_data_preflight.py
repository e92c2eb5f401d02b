"""Insufficient or invalid data are rejected before rendezvous."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_datasets
from open_loaders import FILE_LOADERS, IN_MEMORY_LOADERS, config, memory_config

from ddpbench.data.datasets import image_folder as folder
from ddpbench.data.preflight import check_loader
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import LOADERS, LoaderSpec, find_loader

ABSENT = LoaderSpec(name="absent", help="", factory="nowhere:at_all", reads_dataset=True, modules=("nowhere.at_all",))
AGED = replace(ABSENT, name="aged", modules=("numpy",), packages=("absent", "numpy"), min_major_version=99)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.cifar10(tmp_path_factory.mktemp("cifar"))


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_valid_config_is_accepted(loader: str, tree: Path) -> None:
    check_loader(config(loader, tree), "imagenet", 4, 8)
    check_loader(config(loader), "imagenet", 1000, 512)
    check_loader(config("synthetic"), "cifar10", 10, 512)


@pytest.mark.parametrize("loader", FILE_LOADERS)
def test_too_few_images_are_rejected_with_counts(loader: str, tree: Path) -> None:
    with pytest.raises(UsageError, match=r"16 found, 18 needed for one step of 6 x 3"):
        check_loader(config(loader, tree, batch_size=6), "imagenet", 1000, 3)


def test_too_few_cifar10_images_are_rejected_with_counts(cifar: Path) -> None:
    check_loader(config("torch", cifar, batch_size=50), "cifar10", 10, 2)
    with pytest.raises(UsageError, match=r"100 found, 102 needed for one step of 51 x 2"):
        check_loader(config("torch", cifar, batch_size=51), "cifar10", 10, 2)


def test_counting_stops_at_the_required_number(tree: Path) -> None:
    assert folder.count_images(str(tree), 1000, 3) == 3


@pytest.mark.parametrize("loader", IN_MEMORY_LOADERS)
@pytest.mark.parametrize(("dataset", "classes", "samples"), [("cifar10", 10, 50_000), ("mnist", 10, 60_000), ("disc", 2, 1000)])
def test_generated_dataset_needs_no_folder_and_is_finite(loader: str, dataset: str, classes: int, samples: int) -> None:
    check_loader(memory_config(loader, dataset, batch_size=samples // 2), dataset, classes, 2)
    with pytest.raises(UsageError, match=rf"in the dataset: {samples:,} found, {samples + 2:,} needed"):
        check_loader(memory_config(loader, dataset, batch_size=samples // 2 + 1), dataset, classes, 2)


@pytest.mark.parametrize(
    ("loader", "dataset", "where", "classes", "says"),
    [
        ("torch", "imagenet", "missing", 1000, "no such folder"),
        ("torch", "cifar10", "missing", 10, "no such folder"),
        ("torch", "imagenet", "file", 1000, "is not a folder"),
        ("torch", "imagenet", "empty", 1000, "no class folders"),
        ("torch", "imagenet", "unsplit", 1000, "no class folders in '.*unsplit/train'"),
        ("torch", "imagenet", "untrained", 1000, "no class folders in '.*untrained/train'"),
        ("torch", "imagenet", "hollow", 1000, "no images in the class folder '.*hollow/train/class'"),
        ("torch", "imagenet", "tree", 3, "has 4 class folders, but the model has 3 outputs"),
        ("torch", "imagenet", "cifar", 1000, "contains CIFAR-10"),
        ("torch", "imagenet", "mnist", 1000, "contains MNIST, but this workload trains on image folders"),
        ("torch", "imagenet", "cifar100", 1000, "contains CIFAR-100"),
        ("torch", "cifar10", "tree", 10, "no CIFAR-10 in"),
        ("tensor", "cifar10", "cifar100", 10, "cifar100' contains CIFAR-100, but this workload trains on CIFAR-10"),
        ("tensor", "cifar10", "cifar100/cifar-100-python", 10, "contains CIFAR-100"),
        ("torch", "cifar10", "bare", 10, "bare' contains CIFAR-100"),
        ("torch", "cifar10", "bare/cifar-100-python", 10, "cifar-100-python' contains CIFAR-100"),
        ("torch", "cifar10", "binary", 10, "binary' contains CIFAR-100"),
        ("torch", "cifar10", "unsorted", 10, "no CIFAR-10 in"),
        ("torch", "cifar10", "renamed", 10, "data_batch_1' is not a CIFAR-10 batch: it is a CIFAR-100 file"),
        ("torch", "cifar10", "mislabelled", 10, "data_batch_3' is not a CIFAR-10 batch: a label is not between 0 and 9"),
        ("torch", "cifar10", "torn", 10, "CIFAR-10 in '.*torn/cifar-10-batches-py' is incomplete: no data_batch_3"),
        ("torch", "cifar10", "mnist", 10, "contains MNIST, but this workload trains on CIFAR-10"),
        ("torch", "mnist", "cifar", 10, "contains CIFAR-10, but this workload trains on MNIST"),
        ("tensor", "mnist", "empty", 10, "no MNIST in"),
        ("torch", "mnist", "missing", 10, "no such folder"),
        ("torch", "mnist", "mnist", 9, "MNIST has 10 classes, but the model has 9"),
        ("torch", "disc", "empty", 2, "--data-dir is not read"),
        ("torch", "gemm", "empty", 8, "the matrices are generated; --data-dir is not read"),
        ("torch", "mnist", "file", 10, "is not a folder"),
        ("torch", "gemm", "", 8, "does not read gemm"),
        ("tensor", "imagenet", "tree", 1000, "does not read imagenet"),
        ("torch", "cifar10", "cifar", 5, "has 10 classes, but the model has 5"),
        ("torch", "cifar10", "damaged", 10, "data_batch_1' is not a CIFAR-10 batch"),
        ("dali-cpu", "cifar10", "cifar", 10, "does not read cifar10"),
        ("torch-uint8", "disc", "", 2, "does not read disc"),
        ("test_data_preflight:ABSENT", "imagenet", "tree", 1000, "needs nowhere.at_all, which is not installed"),
        ("test_data_preflight:AGED", "imagenet", "tree", 1000, r"needs numpy 99.0 or newer, but .* is installed"),
        ("tortch", "imagenet", "tree", 1000, "unknown loader 'tortch'"),
    ],
)
def test_invalid_dataset_is_rejected(
    loader: str, dataset: str, where: str, classes: int, says: str, tree: Path, cifar: Path, tmp_path: Path
) -> None:
    for name in ("unsplit/val/class", "untrained/train", "untrained/val/class"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("empty", "hollow/train/class", "damaged", "cifar100/cifar-100-python", "renamed"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("bare/cifar-100-python/train", "binary/train.bin", "binary/test.bin", "unsorted/train"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "file").touch()
    pixels = np.zeros((10, 3072), np.uint8)
    for name in ("cifar100/cifar-100-python/train", "cifar100/cifar-100-python/meta", "renamed/data_batch_1"):
        sample_datasets.pickled(tmp_path / name, pixels, key=b"fine_labels")
    sample_datasets.cifar10(tmp_path / "mislabelled")
    sample_datasets.pickled(tmp_path / "mislabelled/cifar-10-batches-py/data_batch_3", pixels, labels=[10] * 10)
    (sample_datasets.cifar10(tmp_path / "torn") / "cifar-10-batches-py" / "data_batch_3").unlink()
    sample_datasets.mnist(tmp_path / "mnist")
    (tmp_path / "damaged" / "data_batch_1").write_bytes(b"\x80")
    data_dir = {"": None, "tree": tree, "cifar": cifar}.get(where, tmp_path / where)
    with pytest.raises(UsageError, match=says):
        check_loader(config(loader, data_dir), dataset, classes, 1)


@pytest.mark.parametrize(("loader", "dataset"), [("tensor", "mnist"), ("torch", "cifar10"), ("torch", "imagenet")])
def test_unreadable_folder_is_named(loader: str, dataset: str, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 100)
    with pytest.raises(UsageError, match=f"cannot read '{folder}.*': File name too long"):
        check_loader(config(loader, folder), dataset, 1000 if dataset == "imagenet" else 10, 1)


def test_io_error_is_not_reported_as_damaged_file(tmp_path: Path) -> None:
    images = sample_datasets.mnist(tmp_path, packed=False) / "MNIST" / "raw" / "train-images-idx3-ubyte"
    images.unlink()
    images.symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, match=r"cannot read .*: Input/output error"):
        check_loader(config("tensor", tmp_path), "mnist", 10, 1)


class Program:
    """An object whose unpickling creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_cifar10_batch_is_never_executed_as_code(tmp_path: Path) -> None:
    batch = sample_datasets.cifar10(tmp_path) / "cifar-10-batches-py" / "data_batch_2"
    batch.write_bytes(pickle.dumps({b"data": Program(tmp_path / "made")}))
    with pytest.raises(UsageError, match=r"data_batch_2' is not a CIFAR-10 batch: it needs posix.mkdir, so it is not a plain array"):
        check_loader(config("torch", tmp_path), "cifar10", 10, 1)
    assert not (tmp_path / "made").exists()


def test_gpu_loader_is_rejected_on_cpu(tree: Path) -> None:
    with pytest.raises(UsageError, match="loader 'dali-gpu' needs a GPU, but this run is on the CPU"):
        check_loader(config("dali-gpu", tree, device="cpu"), "imagenet", 1000, 1)


def test_suitable_loaders_are_suggested() -> None:
    with pytest.raises(UsageError) as refused:
        check_loader(memory_config("dali-cpu", "mnist"), "mnist", 10, 1)
    assert refused.value.hint == "use " + " or ".join(
        f"--loader {name}" for name in ("synthetic", "replay", "torch", "torch-uint8", "tensor")
    )


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-1], "39,215 bytes instead of 39,216, possibly truncated"),
        ("train-images-idx3-ubyte", lambda content: b"\0\0\x08\x01" + content[4:], "does not start with the magic number"),
        ("train-labels-idx1-ubyte", lambda content: b"", "does not start with the magic number"),
        ("train-labels-idx1-ubyte", lambda content: content[:8] + b"\x0a" + content[9:], "a label is not between 0 and 9"),
        ("train-labels-idx1-ubyte", lambda content: content[:7] + b"\x31" + content[8:-1], "49 labels for 50 images"),
        ("t10k-images-idx3-ubyte", lambda content: content[: len(content) // 2], "possibly truncated"),
    ],
)
def test_damaged_mnist_file_is_named(name: str, damage: Callable[[bytes], bytes], says: str, tmp_path: Path) -> None:
    file = sample_datasets.mnist(tmp_path, packed=False) / "MNIST" / "raw" / name
    check_loader(memory_config("torch", "mnist", sample_datasets.mnist(tmp_path / "whole")), "mnist", 10, 1)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UsageError, match=rf"{name}' is not a valid MNIST IDX file: .*{re.escape(says)}"):
        check_loader(memory_config("torch", "mnist", tmp_path), "mnist", 10, 1)


@pytest.mark.parametrize("part", ["train-images-idx3", "t10k-labels-idx1"])
def test_truncated_mnist_archive_is_named(part: str, tmp_path: Path) -> None:
    file = sample_datasets.mnist(tmp_path) / "MNIST" / "raw" / f"{part}-ubyte.gz"
    sample_datasets.truncate(file)
    with pytest.raises(UsageError, match=rf"{part}-ubyte.gz' is not a valid MNIST IDX file: cannot be decompressed"):
        check_loader(memory_config("tensor", "mnist", tmp_path), "mnist", 10, 1)


def test_mnist_images_of_wrong_size_are_rejected(tmp_path: Path) -> None:
    sample_datasets.idx(tmp_path / "train-images-idx3-ubyte", np.zeros((2, 32, 32)))
    sample_datasets.idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(2))
    with pytest.raises(UsageError, match="its images are 32 x 32 instead of 28 x 28"):
        check_loader(memory_config("tensor", "mnist", tmp_path), "mnist", 10, 1)


def test_damaged_cifar10_test_batch_is_named(tmp_path: Path) -> None:
    sample_datasets.truncate(sample_datasets.cifar10(tmp_path) / "cifar-10-batches-py" / "test_batch")
    with pytest.raises(UsageError, match="test_batch' is not a CIFAR-10 batch"):
        check_loader(memory_config("torch", "cifar10", tmp_path), "cifar10", 10, 1)


def test_loaders_are_found_by_name_and_near_misses_are_suggested() -> None:
    assert all(name == spec.name for name, spec in LOADERS.items())
    assert find_loader("test_data_preflight:ABSENT") is ABSENT
    with pytest.raises(UsageError, match="is not a loader"):
        find_loader("test_data_preflight:FILE_LOADERS")
    with pytest.raises(UsageError) as refused:
        find_loader("dali_cpu")
    assert "dali-cpu" in refused.value.hint


def test_preflight_does_not_import_torch(tree: Path, cifar: Path) -> None:
    script = """
import sys
from ddpbench.data.preflight import check_loader
from ddpbench.record.config import Config
from ddpbench.workloads.registry import find_workload
find_workload("resnet50")
asked = {"batch_size": 2, "image_size": 32, "workers": 1}
check_loader(Config(workload="resnet18", loader="torch", data_dir=sys.argv[1], **asked), "imagenet", 1000, 2)
check_loader(Config(workload="vgg16-cifar10", loader="torch", data_dir=sys.argv[2], **asked), "cifar10", 10, 2)
check_loader(Config(workload="mnist-cnn", loader="tensor", **asked), "mnist", 10, 2)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script, str(tree), str(cifar)], check=False).returncode == 0
