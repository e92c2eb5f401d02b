"""Data that could not feed the ranks is refused before they meet, with the counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import imagery
import pytest
from loading import OF_FILES, config

from ddpbench.data import cifar10, folder
from ddpbench.data.catalogue import LOADERS, LoaderSpec, find
from ddpbench.data.open import check
from ddpbench.record.errors import UsageError

ABSENT = LoaderSpec(name="absent", help="", open="nowhere:at_all", reads_files=True, needs="dali-cuda13", module="nowhere.at_all")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imagery.image_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imagery.cifar10(tmp_path_factory.mktemp("cifar"))


@pytest.mark.parametrize("loader", OF_FILES)
def test_what_can_run_is_not_refused(loader: str, tree: Path) -> None:
    check(config(loader, tree), "imagenet", 4, 8)
    check(config("synthetic"), "cifar10", 10, 512)


@pytest.mark.parametrize("loader", OF_FILES)
def test_too_few_images(loader: str, tree: Path) -> None:
    with pytest.raises(UsageError, match=r"16 found, 18 needed for one step of 6 x 3"):
        check(config(loader, tree, batch_size=6), "imagenet", 1000, 3)


def test_too_few_images_of_cifar10(cifar: Path) -> None:
    check(config("torch", cifar, batch_size=50), "cifar10", 10, 2)
    with pytest.raises(UsageError, match=r"100 found, 102 needed for one step of 51 x 2"):
        check(config("torch", cifar, batch_size=51), "cifar10", 10, 2)


def test_counting_stops_when_there_are_enough(tree: Path, cifar: Path) -> None:
    assert folder.count(str(tree), 1000, 3) == 3
    assert cifar10.count(str(cifar), 10, imagery.CIFAR10_BATCH) == imagery.CIFAR10_BATCH


@pytest.mark.parametrize(
    ("loader", "dataset", "where", "classes", "says"),
    [
        ("torch", "imagenet", "", 1000, "reads files, and no folder was named"),
        ("torch", "imagenet", "missing", 1000, "there is no folder"),
        ("torch", "cifar10", "missing", 10, "there is no folder"),
        ("torch", "imagenet", "file", 1000, "is no folder"),
        ("torch", "imagenet", "empty", 1000, "no class folders"),
        ("torch", "imagenet", "hollow", 1000, "0 found, 2 needed"),
        ("torch", "imagenet", "tree", 3, "has 4 class folders and the model 3 outputs"),
        ("torch", "imagenet", "cifar", 1000, "holds CIFAR-10"),
        ("torch", "cifar10", "tree", 10, "no CIFAR-10 python batches"),
        ("torch", "cifar10", "cifar", 5, "has 10 classes and the model 5"),
        ("torch", "cifar10", "damaged", 10, "data_batch_1' is no CIFAR-10 batch"),
        ("dali-cpu", "cifar10", "cifar", 10, "does not read cifar10"),
        ("test_data_refusals:ABSENT", "imagenet", "tree", 1000, "needs nowhere.at_all, which is not installed"),
        ("tortch", "imagenet", "tree", 1000, "unknown loader 'tortch'"),
    ],
)
def test_refusals(loader: str, dataset: str, where: str, classes: int, says: str, tree: Path, cifar: Path, tmp_path: Path) -> None:
    for name in ("empty", "hollow/train/class", "damaged"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "damaged" / "data_batch_1").write_bytes(b"\x80")
    data_dir = {"": None, "tree": tree, "cifar": cifar}.get(where, tmp_path / where)
    with pytest.raises(UsageError, match=says):
        check(config(loader, data_dir), dataset, classes, 1)


def test_names_from_outside_and_near_misses() -> None:
    assert all(name == spec.name for name, spec in LOADERS.items())
    assert find("test_data_refusals:ABSENT") is ABSENT
    with pytest.raises(UsageError, match="is no loader"):
        find("test_data_refusals:OF_FILES")
    with pytest.raises(UsageError) as refused:
        find("dali_cpu")
    assert "dali-cpu" in refused.value.hint


def test_names_and_checks_leave_torch_alone(tree: Path, cifar: Path) -> None:
    script = """
import sys
from ddpbench.data.open import check
from ddpbench.record.config import Config
from ddpbench.workloads import catalogue
catalogue.find("resnet50")
check(Config(workload="resnet18", loader="torch", data_dir=sys.argv[1], batch_size=2), "imagenet", 1000, 2)
check(Config(workload="vgg16-cifar10", loader="torch", data_dir=sys.argv[2], batch_size=2), "cifar10", 10, 2)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script, str(tree), str(cifar)], check=False).returncode == 0
