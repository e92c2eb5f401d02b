"""Unreadable files: named in an error, or skipped and counted; never a hang."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_datasets
import training
from open_loaders import config, opened, shard, take
from torch import nn

from ddpbench.data import preflight
from ddpbench.data.datasets import image_folder
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.preflight import check_loader
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.io import load
from ddpbench.training.session import Session
from ddpbench.training.warmup import warm_up

WITH_WORKERS = ["torch", "torch-uint8"]

DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (sample_datasets.truncate, "Truncated"),
    "empty": (lambda file: file.write_bytes(b""), "it is empty"),
    "text": (lambda file: file.write_text("no image, whatever it is called"), "not an image"),
    "gone": (Path.unlink, "No such file or directory"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "Is a directory"),
}
"""Damage to a file during a run, and its message."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twelve images, distinguishable by label."""
    return sample_datasets.image_tree(tmp_path, classes=12, images=1, texture=0)


def spoil(tree: Path, label: int, how: str = "text") -> Path:
    file = tree / "train" / f"n{label:08d}" / "0.JPEG"
    DAMAGE[how][0](file)
    return file


@pytest.mark.parametrize("loader", WITH_WORKERS)
@pytest.mark.parametrize("how", list(DAMAGE))
def test_unreadable_file_is_named(loader: str, how: str, tree: Path) -> None:
    with opened(config(loader, tree, workers=0, shuffle=False)) as live:
        file = spoil(tree, 7, how)  # during the run
        take(live, 3)
        with pytest.raises(BenchError) as error:
            take(live, 2)
    assert error.value.message.startswith(f"cannot read the image '{file}': ")
    assert DAMAGE[how][1] in error.value.message
    assert "--skip-bad" in error.value.hint


@pytest.mark.parametrize("loader", WITH_WORKERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_allowed_bad_files_are_skipped_noted_once_and_counted(
    loader: str, workers: int, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [spoil(tree, label) for label in (3, 4)]
    with opened(config(loader, tree, workers=workers, shuffle=False, skip_bad=2)) as live:
        labels = take(live, 12)[1].tolist()
        loading = live.pop_stats()
    assert labels == 2 * [0, 1, 2, 5, 5, 5, *range(6, 12)], "the next file takes its place"
    assert loading
    assert len(loading.skipped_files) == 2, "each once across epochs"
    notes = [f"ddpbench: note: skipped: cannot read the image '{file}': not an image" for file in files]
    assert capsys.readouterr().err.splitlines() == notes


@pytest.mark.parametrize("loader", WITH_WORKERS)
def test_one_bad_file_above_the_limit_ends_the_run(loader: str, tree: Path) -> None:
    for label in (1, 4):
        spoil(tree, label)
    last = spoil(tree, 9)
    with opened(config(loader, tree, workers=1, shuffle=False, skip_bad=2)) as live, pytest.raises(BenchError) as error:
        take(live, 6)
    assert error.value.message.startswith(f"cannot read the image '{last}': ")
    assert error.value.message.endswith("not an image, after 2 others skipped")
    assert error.value.hint.startswith("--skip-bad 2 is exceeded")


@pytest.mark.parametrize("loader", WITH_WORKERS)
def test_already_skipped_file_does_not_exceed_the_limit(loader: str, tree: Path) -> None:
    spoil(tree, 11)
    with opened(config(loader, tree, workers=0, shuffle=False, skip_bad=1)) as live:
        take(live, 6)
        new = spoil(tree, 10)  # replaced by number 11, which is unreadable too
        with pytest.raises(BenchError) as error:
            take(live, 6)
    assert error.value.message == f"cannot read the image '{new}': not an image, after 1 other skipped"


@pytest.mark.parametrize("allowed", [0, 3, 100])
def test_dataset_without_readable_files_fails_instead_of_hanging(allowed: int, tree: Path) -> None:
    for label in range(12):
        spoil(tree, label)
    with opened(config("torch", tree, workers=1, skip_bad=allowed)) as live, pytest.raises(BenchError, match="not an image") as error:
        take(live, 1)
    assert ("none of the 12 images can be read" in error.value.message) == (allowed == 100)
    assert error.value.hint.endswith("--skip-bad N") == (allowed == 0), "a given flag is not suggested"


@pytest.mark.parametrize("loader", WITH_WORKERS)
def test_folder_emptied_after_preflight_is_rejected(loader: str, tree: Path) -> None:
    for label in range(12):
        spoil(tree, label, "gone")
    with pytest.raises(UsageError, match="no images in"), opened(config(loader, tree)) as live:
        take(live, 1)


def test_round_includes_files_skipped_before_it(tree: Path) -> None:
    for label in range(training.CLASSES, 12):
        shutil.rmtree(tree / "train" / f"n{label:08d}")
    spoil(tree, 3)
    world = training.world_of_one()
    settled = training.config(loader="torch", data_dir=str(tree), workers=1, skip_bad=1)
    loader = open_loader(settled, shard(classes=12))
    live = Session(settled, training.tiny_net(), nn.CrossEntropyLoss(), loader, world, ProgressMarker(60.0))
    try:
        warm_up(live)
        stats = [live.run_round(2).loader_stats for _ in range(2)]
    finally:
        live.close()
    assert [loading and len(loading.skipped_files) for loading in stats] == [1, 0]


def test_class_without_images_is_named(tree: Path) -> None:
    (tree / "train" / "n00000005" / "0.JPEG").rename(tree / "train" / "n00000005" / "0.txt")
    with pytest.raises(UsageError, match=r"no images in the class folder '.*n00000005': 1 other files; supported are \.jpg, \.jpeg, "):
        check_loader(config("torch", tree), "imagenet", 1000, 1)


def test_files_with_other_suffixes_are_counted_except_hidden_files(tree: Path) -> None:
    (tree / "train" / "n00000005" / "1.DAT").touch()
    (tree / "train" / "n00000005" / "LICENSE").touch()
    (tree / "train" / "n00000006" / ".DS_Store").touch()
    found = image_folder.read_index(str(tree))
    assert (len(found.files), found.skipped_extensions) == (12, {".dat": 1, "": 1})


def test_too_few_images_for_the_ranks_are_rejected(tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path, classes=3, images=1)
    with pytest.raises(UsageError, match=r"3 found, 8 needed for one step of 1 x 8") as error:
        check_loader(config("torch-uint8", tmp_path, batch_size=1), "imagenet", 1000, 8)
    assert error.value.hint == "start fewer ranks, or add images"


@pytest.mark.parametrize("loader", WITH_WORKERS)
def test_more_workers_than_files(loader: str, tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path, classes=3, images=1, texture=0)
    settled = config(loader, tmp_path, workers=5, batch_size=3)
    check_loader(settled, "imagenet", 1000, 1)
    with opened(settled) as live:
        assert Counter(take(live, 4)[1].tolist()) == {0: 4, 1: 4, 2: 4}


def test_insufficient_shared_memory_is_rejected_with_the_required_size(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "shared_memory_free_bytes", lambda: 64 * 2**20)
    large = {"batch_size": 12, "image_size": 512, "workers": 3, "prefetch": 2}
    with pytest.raises(UsageError, match=r"/dev/shm has 64 MiB free, but prefetched batches need 252: 1 x 7 of 36 MiB") as error:
        check_loader(config("torch", tree, **large), "imagenet", 1000, 1)
    assert "--shm-size" in error.value.hint
    check_loader(config("torch-uint8", tree, **large), "imagenet", 1000, 1)  # a quarter
    check_loader(config("torch", tree, **{**large, "workers": 0}), "imagenet", 1000, 1)
    for name, value in {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UsageError, match=r"need 126: 2 x 7 of 9 MiB"):
        check_loader(config("torch-uint8", tree, **{**large, "batch_size": 3, "image_size": 1024}), "imagenet", 1000, 1)


@pytest.mark.parametrize(("loader", "needed"), [("torch-uint8", "315: 1 x 7 of 9 MiB and 36 MiB"), ("dali-cpu", "252: 1 x 7 of 36 MiB")])
def test_validation_counts_towards_shared_memory(loader: str, needed: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "shared_memory_free_bytes", lambda: 64 * 2**20)
    monkeypatch.setattr("ddpbench.record.packages.is_installed", lambda module: True)
    large = config(loader, tree, batch_size=12, image_size=512, workers=3, prefetch=2, validate=True)
    check_loader(large, "imagenet", 1000, 1)
    sample_datasets.image_tree(tree, classes=12, images=1, part="val")
    with pytest.raises(UsageError, match=f"prefetched batches need {needed} of held-out images"):
        check_loader(large, "imagenet", 1000, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "ends"), [((), 1), (("--skip-bad", "1"), 0)], ids=["named", "left out"])
def test_non_utf8_file_name_is_printed_escaped(
    flags: tuple[str, ...], ends: int, tree: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    spoilt = os.fsencode(tree / "train" / "n00000001") + b"/\xfc.jpg"
    Path(os.fsdecode(spoilt)).write_bytes(b"no image")
    words = ["resnet18", "--image-size", "32", "-b", "2", "--device", "cpu", "--warmup", "1", "--steps", "8", "--rounds", "1", "-j", "0"]
    done = launch([sys.executable, "-m", "ddpbench", *words, "--data-dir", str(tree), *flags, "-o", str(tmp_path / "runs")], timeout=60)
    assert done.returncode == ends, done.stderr
    assert "Traceback" not in done.stderr
    (path,) = (tmp_path / "runs").glob("*.json")
    [record] = load(path).records
    if ends:
        assert "n00000001/\\udcfc.jpg': not an image" in done.stderr
        assert record.fault
        assert "\\udcfc.jpg" in record.fault.message
    else:
        [met] = (met for trace in record.traces if trace.loader_stats for met in trace.loader_stats.skipped_files)
        assert "n00000001/\\udcfc.jpg': not an image" in met
