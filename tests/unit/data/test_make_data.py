"""``make-data``: generated datasets in the file formats of the originals, and the default substitute for ImageNet."""

from __future__ import annotations

import pickle
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import TORCHRUN, errors, only_record
from open_loaders import config
from torchvision import datasets

from ddpbench.bench.preflight import with_generated_images
from ddpbench.cli import main
from ddpbench.data.datasets import files
from ddpbench.data.generated import arrays
from ddpbench.data.generated.folder import cache_dir
from ddpbench.data.generated.registry import CPU_SIZE, GPU_SIZE, default_imagenet, generated_dataset
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache folder that does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "ddpbench"


@pytest.mark.parametrize(
    ("dataset", "workload", "held_out"), [("imagenet", "resnet50", 10), ("cifar10", "vgg16-cifar10", 20), ("mnist", "mnist-cnn", 17)]
)
def test_make_data_prints_the_path_and_how_to_use_it(
    cache: Path, capsys: pytest.CaptureFixture[str], dataset: str, workload: str, held_out: int
) -> None:
    words = ["make-data", dataset, "--images", "100", "--classes", "10"]
    assert main(words) == 0
    first, folder = capsys.readouterr(), f"{cache}/{dataset}-100x10-recipe1"
    title, where, how = first.out.splitlines()
    assert title.startswith("100 ")
    assert title.endswith(f"-like images of 10 classes, and {held_out} held out")
    assert where == folder
    assert shlex.split(how) == ["use", "ddpbench", workload, "--data-dir", folder]
    assert first.err.startswith(f"ddpbench: generating {title.partition(', ')[0]}")
    assert main(words) == 0
    assert (capsys.readouterr()) == (first.out, ""), "the second call generates nothing"
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


@pytest.mark.parametrize("dataset", list(arrays.GENERATED))
def test_generated_dataset_is_read_as_the_original(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["make-data", dataset, str(tmp_path / "my set"), "--images", "1000"]) == 0
    assert "my set'" in capsys.readouterr().out, "a name with a space is quoted"
    assert files.check_dataset(dataset, str(tmp_path / "my set"), 10) == 1000
    held_out = files.load_held_out(dataset, str(tmp_path / "my set"))
    assert held_out is not None
    assert len(held_out.labels) == {"cifar10": 200, "mnist": 167}[dataset]
    for found, same in (
        (files.load_train(dataset, str(tmp_path / "my set")), arrays.generate_images(dataset, "train", 1000)),
        (held_out, arrays.generate_images(dataset, "held-out", len(held_out.labels))),
    ):
        assert np.array_equal(found.samples, same.samples)
        assert np.array_equal(found.labels, same.labels)
        assert (found.generated, found.dataset, len(found.labels)) == (True, same.dataset, len(same.labels))


def test_cifar10_batches_are_readable_by_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision reads them except for the checksum, which only the original files have."""
    main(["make-data", "cifar10", str(tmp_path / "set"), "--images", "50", "--classes", "3", "--quiet"])
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    read = datasets.CIFAR10(str(tmp_path / "set"))
    ours = files.load_train("cifar10", str(tmp_path / "set"))
    assert np.array_equal(read.data, ours.samples)
    assert read.targets == ours.labels.tolist()
    assert set(read.targets) == {0, 1, 2}
    batch = pickle.loads((tmp_path / "set" / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")
    assert set(batch) == {b"batch_label", b"labels", b"data", b"filenames"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["imagnet"], "unknown dataset 'imagnet'"),
        (["cifar10", "--classes", "11"], "CIFAR-10 has 10 classes, not 11"),
        (["imagenet", "--images", "5", "--classes", "6"], "5 images are too few for 6 classes"),
        (["mnist", "--images", "0"], "--images cannot be '0'"),
    ],
)
def test_impossible_dataset_is_rejected(cache: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["make-data", *words])
    assert ended.value.code == 2
    assert says in errors(capsys.readouterr().err)[0]
    assert not cache.exists()


@pytest.mark.parametrize(("name", "hint"), [("imagnet", "did you mean 'imagenet'?"), ("faces", "choose imagenet, cifar10, mnist")])
def test_unknown_dataset_suggests_existing_ones(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["make-data", name])
    assert capsys.readouterr().err == f"ddpbench: error: unknown dataset '{name}'\nhint: {hint}\n"


def test_default_dataset_equals_the_explicitly_generated_one() -> None:
    assert default_imagenet(256, 1000, cuda=True).name == generated_dataset("imagenet").name
    assert (generated_dataset("imagenet").train_images, generated_dataset("imagenet").classes) == GPU_SIZE
    assert (default_imagenet(16, 1000, cuda=False).train_images, default_imagenet(16, 10, cuda=False).classes) == (CPU_SIZE[0], 10)
    assert default_imagenet(1024, 1000, cuda=False).train_images == 1024
    assert default_imagenet(12_801, 1000, cuda=True).train_images == 25_600


def test_cache_dir_follows_xdg_cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir({"XDG_CACHE_HOME": "/scratch"}) == Path("/scratch/ddpbench")
    assert cache_dir({}) == cache_dir({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "ddpbench"


def test_arms_without_data_dir_share_one_generated_dataset(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def arm(loader: str, data_dir: Path | None = None, batch_size: int = 8) -> Config:
        return config(loader, data_dir, batch_size=batch_size, device="cpu")

    arms = [arm("torch", batch_size=100), arm("synthetic"), arm("torch", batch_size=200), arm("torch", Path("/mine"))]
    filled = with_generated_images(arms, 2, quiet=False)
    made_here = str(cache / default_imagenet(400, 1000, cuda=False).name)
    assert [each.data_dir for each in filled] == [made_here, None, made_here, "/mine"]
    assert len(list((cache / made_here / "train").glob("*/*"))) == 512
    assert f"in '{made_here}'" in capsys.readouterr().err
    assert with_generated_images(arms, 2, quiet=False) == filled
    assert capsys.readouterr().err == ""


def test_unwritable_cache_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot generate 512 ImageNet-like images") as refused:
        with_generated_images([config("torch")], 1, quiet=True)
    assert "XDG_CACHE_HOME" in refused.value.hint


@pytest.mark.slow
def test_two_ranks_without_data_dir_train_on_the_generated_dataset(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    small = ["--device", "cpu", "--image-size", "32", "-b", "2", "--rounds", "2", "--steps", "2", "-w", "1", "-j", "1"]
    words = [*TORCHRUN, "resnet18", "--loader", "torch", *small, "--validate", "-o", str(results)]
    done = launch(words, env={"XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ddpbench: generating") == 1
    assert "generated ImageNet-like dataset, 512 JPEGs" in done.stdout
    record = only_record(results)
    assert record.data is not None
    assert (record.data.generated, record.requested and record.requested.data_dir) == (True, None)
    assert all(timed.traces[0].numerics.accuracy is not None for timed in record.rounds)
