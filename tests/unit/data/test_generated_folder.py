"""A generated dataset is complete or absent, also after concurrent or interrupted generation."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, errors

from ddpbench.data.generated.folder import MARKER_FILE, generate
from ddpbench.data.generated.image_tree import generated_image_folder
from ddpbench.record.errors import UsageError

IMAGES, CLASSES = 16, 4
SMALL = ["--images", str(IMAGES), "--classes", str(CLASSES)]


def ignore_progress(done: int) -> None:
    """Ignore progress."""


def made(folder: Path) -> list[Path]:
    """Every file of the generated dataset in ``folder``."""
    return sorted(folder.rglob("*.JPEG"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("data") / "whole"
    generate(target, generated_image_folder(IMAGES, CLASSES), ignore_progress)
    return target


def test_second_call_generates_nothing(whole: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in made(whole)}
    generate(whole, generated_image_folder(IMAGES, CLASSES), lambda done: pytest.fail("it is there"))
    assert {file: file.stat().st_mtime_ns for file in made(whole)} == before


def test_progress_is_reported(tmp_path: Path) -> None:
    progress: list[int] = []
    generate(tmp_path / "made", generated_image_folder(IMAGES, CLASSES), progress.append)
    assert (progress[0], progress[-1], progress) == (0, IMAGES + CLASSES, sorted(progress))


def test_concurrent_processes_generate_once(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from ddpbench.data.generated.folder import generate; from ddpbench.data.generated.image_tree import generated_image_folder\n"
        "generate(Path(sys.argv[1]), generated_image_folder(16, 4), lambda done: done or print('making', "
        "flush=True)); assert 'torch' not in sys.modules"
    )
    target = tmp_path / "new" / "made"
    ranks = [subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(rank.communicate(timeout=120)[0] for rank in ranks) == ["", "", "making\n"]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert [path.name for path in target.parent.iterdir()] == ["made"], "no temporary files are left"
    assert len(made(target)) == IMAGES + CLASSES


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(signal.SIGKILL, -9, id="killed"),
        pytest.param(signal.SIGINT, 130, id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
    ],
)
def test_partially_generated_dataset_is_never_used(start: Callable[..., Any], tmp_path: Path, sent: signal.Signals, code: int) -> None:
    target = tmp_path / "made"
    running = start([*PLAIN, "make-data", "imagenet", str(target), "--images", "100000"])
    running.until(lambda: len(made(tmp_path / ".made.unfinished")) > IMAGES)
    os.kill(running.pid, sent)
    done = running.wait(20)
    assert done.returncode == code
    assert not target.exists()
    if sent is not signal.SIGKILL:
        assert errors(done.stderr) == [f"interrupted by {sent.name}"]
        assert list(tmp_path.iterdir()) == [], "partial files are removed"
    generate(target, generated_image_folder(IMAGES, CLASSES), ignore_progress)
    assert len(made(target)) == IMAGES + CLASSES
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_dataset_with_missing_files_is_regenerated(whole: Path, tmp_path: Path) -> None:
    generate(tmp_path / "made", generated_image_folder(IMAGES, CLASSES), ignore_progress)
    made(tmp_path / "made")[3].unlink()
    generate(tmp_path / "made", generated_image_folder(IMAGES, CLASSES), ignore_progress)
    assert [file.read_bytes() for file in made(tmp_path / "made")] == [file.read_bytes() for file in made(whole)]


def test_unrelated_folder_is_not_overwritten(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains something other than 17 ImageNet-like images of 4 classes"):
        generate(whole, generated_image_folder(IMAGES + 1, CLASSES), ignore_progress)
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "mine.jpg").touch()
    for theirs in (tmp_path / "photographs", tmp_path / "photographs" / "mine.jpg"):
        with pytest.raises(UsageError, match="contains something other"):
            generate(theirs, generated_image_folder(IMAGES, CLASSES), ignore_progress)
    assert [path.name for path in (tmp_path / "photographs").iterdir()] == ["mine.jpg"]


def test_empty_folder_and_symlink_are_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    generate(tmp_path / "link", generated_image_folder(IMAGES, CLASSES), ignore_progress)
    assert len(made(tmp_path / "empty")) == IMAGES + CLASSES
    assert (tmp_path / "link").is_symlink()


def test_unwritable_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot generate 16 ImageNet-like images .* in '.*/file/made': .*: '.*/file'"):
        generate(tmp_path / "file" / "made", generated_image_folder(IMAGES, CLASSES), ignore_progress)


def test_dataset_larger_than_the_disk_is_rejected(launch: Callable[..., Any], tmp_path: Path) -> None:
    done = launch([*PLAIN, "make-data", "imagenet", str(tmp_path / "made"), "--images", "10000000000"])
    assert done.returncode == 2
    (said,) = errors(done.stderr)
    assert said.startswith("10,000,000,000 ImageNet-like images of 100 classes need 1,147,120.0 GB, but ")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def short_files() -> Iterator[None]:
    """Limit file sizes to 20 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_error_leaves_no_files(short_files: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot generate 16 ImageNet-like images .*: File too large"):
        generate(tmp_path / "made", generated_image_folder(IMAGES, CLASSES), ignore_progress)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_reported_in_one_line(launch: Callable[..., Any], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a full disk is made by mounting a small one, which needs root")
    (tmp_path / "disk").mkdir()
    program = f"{sys.executable} -m ddpbench make-data imagenet disk/made {' '.join(SMALL)}"
    script = f"mount -t tmpfs -o size=9m,nr_inodes=20 tmpfs disk && {program}; code=$?; ls -A disk; umount disk; exit $code"
    done = launch(["unshare", "-m", "bash", "-c", script], cwd=tmp_path)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine does not let root mount")
    assert done.returncode == 2
    (said,) = errors(done.stderr)
    assert "No space left on device" in said
    assert done.stdout == "", "nothing is left on the disk"


def test_marker_file_without_images_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / MARKER_FILE).write_text(generated_image_folder(IMAGES, CLASSES).name)
    generate(tmp_path / "made", generated_image_folder(IMAGES, CLASSES), ignore_progress)
    assert len(made(tmp_path / "made")) == IMAGES + CLASSES
