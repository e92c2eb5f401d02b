"""The made stand-in for ImageNet: as heavy as photographs, learnable, the same everywhere, and made once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from PIL import Image

from ddpbench.data import folder, made_tree
from ddpbench.record.errors import UsageError

IMAGES, CLASSES = 16, 4


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_tree.made_tree(tmp_path_factory.mktemp("data") / "made", IMAGES, CLASSES)


def files(tree: Path, part: str) -> list[Path]:
    return sorted((tree / part).glob("*/*"))


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float64)


def tile(file: Path) -> np.ndarray:
    """How the squares differ from their mean in colour, over every tile of the image: what grain leaves of the class."""
    side = made_tree.CELL
    squares = pixels(file).reshape(made_tree.HEIGHT // side, side, made_tree.WIDTH // side, side, 3).mean((1, 3))
    across = made_tree.CELLS
    mean = squares.reshape(-1, across, squares.shape[1] // across, across, 3).mean((0, 2))
    return np.asarray(mean - mean.mean((0, 1)))


def test_it_is_read_as_a_folder_of_images(tree: Path) -> None:
    read, held_out = folder.read(str(tree)), folder.read_held_out(str(tree))
    assert (len(read.files), set(read.labels)) == (IMAGES, set(range(CLASSES)))
    assert held_out is not None
    assert held_out.labels == list(range(CLASSES))
    assert not {Path(file).read_bytes() for file in read.files} & {Path(file).read_bytes() for file in held_out.files}
    assert (made_tree.is_made(str(tree)), made_tree.is_made(str(tree / "train"))) == (True, False)


def test_files_are_as_heavy_as_photographs(tree: Path) -> None:
    train = files(tree, "train")
    sizes = [file.stat().st_size for file in train]
    assert 95_000 < fmean(sizes) < 117_000
    assert max(sizes) > 1.15 * min(sizes)
    assert pixels(train[0]).shape == (375, 500, 3)


def test_the_spectrum_falls_as_a_photographs(tree: Path) -> None:
    frequency = np.hypot(np.fft.fftfreq(375)[:, None], np.fft.rfftfreq(500))
    grey = np.mean([np.abs(np.fft.rfft2(pixels(file).mean(-1))) for file in files(tree, "train")], 0)
    rings = np.array([0.02, 0.04, 0.08, 0.16])
    heights = [grey[(frequency > ring / 1.2) & (frequency < ring * 1.2)].mean() for ring in rings]
    slope = np.polyfit(np.log(rings), np.log(heights), 1)[0]
    assert slope == pytest.approx(-1, abs=0.3)


def test_a_class_is_known_by_its_tile(tree: Path) -> None:
    seen = [np.mean([tile(file) for file in sorted(group.iterdir())], 0) for group in sorted((tree / "train").iterdir())]
    for label, group in enumerate(sorted((tree / "val").iterdir())):
        (file,) = group.iterdir()
        assert int(np.argmin([np.abs(tile(file) - each).mean() for each in seen])) == label


def test_it_is_the_same_on_every_machine(tree: Path, tmp_path: Path) -> None:
    assert hashlib.sha1(made_tree._grain().tobytes()).hexdigest()[:8] == "80ffb672"
    again = made_tree.made_tree(tmp_path / "again", IMAGES, CLASSES)
    for part in ("train", "val"):
        assert [file.read_bytes() for file in files(again, part)] == [file.read_bytes() for file in files(tree, part)]


def test_a_second_call_makes_nothing(tree: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in files(tree, "train")}
    assert made_tree.made_tree(tree, IMAGES, CLASSES) == tree
    assert {file: file.stat().st_mtime_ns for file in files(tree, "train")} == before


def test_many_processes_ask_and_one_makes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ddpbench.data import made_tree as m\n"
        "make = m._make; m._make = lambda *given: (print('made', flush=True), make(*given))\n"
        "m.made_tree(Path(sys.argv[1]), 16, 4); assert 'torch' not in sys.modules"
    )
    target = tmp_path / "new" / "made"
    ranks = [subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(rank.communicate(timeout=120)[0], rank.returncode) for rank in ranks].count(("made\n", 0)) == 1
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert [path.name for path in target.parent.iterdir()] == ["made"], "nothing else is left behind"
    assert len(files(target, "train")) == 16


def test_what_a_killed_process_left_is_made_anew(tmp_path: Path) -> None:
    left = tmp_path / ".made.unfinished" / "train" / "n00000099"
    left.mkdir(parents=True)
    made_tree.made_tree(tmp_path / "made", 4, 2)
    assert [group.name for group in sorted((tmp_path / "made" / "train").iterdir())] == ["n00000000", "n00000001"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_another_folder_is_left_alone(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds something else than the made set of 17 images, 4 classes"):
        made_tree.made_tree(tree, IMAGES + 1, CLASSES)
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "mine.jpg").touch()
    with pytest.raises(UsageError, match="holds something else"):
        made_tree.made_tree(tmp_path / "photographs", IMAGES, CLASSES)
    with pytest.raises(UsageError, match="something else"):
        made_tree.made_tree(tmp_path / "photographs" / "mine.jpg", IMAGES, CLASSES)
    assert [path.name for path in (tmp_path / "photographs").iterdir()] == ["mine.jpg"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        made_tree.made_tree(tmp_path / "file" / "made", IMAGES, CLASSES)
