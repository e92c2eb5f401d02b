"""The generated substitute for ImageNet: realistic sizes, learnable, reproducible."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from ddpbench.data.datasets import image_folder
from ddpbench.data.generated import photographs
from ddpbench.data.generated.folder import generate, is_generated
from ddpbench.data.generated.image_tree import generated_image_folder

IMAGES, CLASSES = 40, 4


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("data") / "made"
    generate(target, generated_image_folder(IMAGES, CLASSES), lambda done: None)
    return target


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    files = [io.BytesIO() for _ in range(400)]
    for number, file in enumerate(files):
        photographs.write_photo(number, number % CLASSES, held_out=False, file=file)
    return [file.getvalue() for file in files]


def opened(photo: bytes) -> Image.Image:
    return Image.open(io.BytesIO(photo))


def pixels(photo: bytes) -> np.ndarray:
    return np.asarray(opened(photo).convert("RGB"), dtype=np.float64)


def tile(photo: bytes) -> np.ndarray:
    """Mean of all complete tiles of the image, which averages the grain out and keeps the class pattern."""
    period = photographs.CELL * photographs.CELLS
    image = pixels(photo)
    down, across = image.shape[0] // period, image.shape[1] // period
    tiles = image[: down * period, : across * period].reshape(down, period, across, period, 3).mean((0, 2))
    squares = tiles.reshape(photographs.CELLS, photographs.CELL, photographs.CELLS, photographs.CELL, 3).mean((1, 3))
    return np.asarray(squares - squares.mean((0, 1)))


def in_colour_and_full(photo: bytes) -> bool:
    """Whether the image is RGB and large enough for complete squares."""
    image = opened(photo)
    return image.mode == "RGB" and 375 <= max(image.size) <= photographs.MAX_DRAWN_WIDTH and min(image.size) >= 250


def test_generated_tree_is_read_as_image_folder(tree: Path) -> None:
    read, held_out = image_folder.read_index(str(tree)), image_folder.read_held_out_index(str(tree))
    assert (len(read.files), set(read.labels), read.generated) == (IMAGES, set(range(CLASSES)), True)
    assert (read.dataset, read.file_kind) == ("imagenet", "jpegs")
    assert held_out is not None
    assert held_out.labels == list(range(CLASSES))
    assert not {Path(file).read_bytes() for file in read.files} & {Path(file).read_bytes() for file in held_out.files}
    assert is_generated(str(tree / "train"))
    assert image_folder.read_index(str(tree / "train")).generated
    assert not is_generated(str(tree.parent))


def test_file_sizes_match_imagenet(photos: list[bytes]) -> None:
    sizes = sorted(map(len, photos))
    assert 102_000 < fmean(sizes) < 119_000
    assert fmean(sizes) == pytest.approx(photographs.MEAN_BYTES, rel=0.08)
    assert sizes[20] < 40_000
    assert sizes[-20] > 160_000


def test_image_sizes_and_modes_match_imagenet(photos: list[bytes]) -> None:
    images = [opened(photo) for photo in photos]
    widths, heights = zip(*(image.size for image in images), strict=True)
    assert (median(widths), median(heights)) == (500, 375)
    assert 440 < fmean(widths) < 500
    assert 360 < fmean(heights) < 410
    assert len({image.size for image in images}) > 50
    assert max(widths) >= 1024
    modes = Counter(image.mode for image in images)
    assert (modes["CMYK"], images[photographs.FIRST_CMYK].mode) == (1, "CMYK")
    assert 2 <= modes["L"] <= 20
    assert {JpegImagePlugin.get_sampling(image) for image in images if image.mode == "RGB"} == {2}, "4:2:0"


def test_spectrum_falls_like_that_of_photographs(photos: list[bytes]) -> None:
    frequency = np.hypot(np.fft.fftfreq(375)[:, None], np.fft.rfftfreq(500))
    same = [photo for photo in photos if opened(photo).size == (500, 375)][:20]
    grey = np.mean([np.abs(np.fft.rfft2(pixels(photo).mean(-1))) for photo in same], 0)
    rings = np.array([0.02, 0.04, 0.08, 0.16])
    heights = [grey[(frequency > ring / 1.2) & (frequency < ring * 1.2)].mean() for ring in rings]
    slope = np.polyfit(np.log(rings), np.log(heights), 1)[0]
    assert slope == pytest.approx(-1, abs=0.3)


def test_classes_are_distinguishable(photos: list[bytes]) -> None:
    learnt = [[tile(photo) for photo in photos[label:200:CLASSES] if in_colour_and_full(photo)] for label in range(CLASSES)]
    seen = [np.mean(tiles, 0) for tiles in learnt]
    new = [(number % CLASSES, tile(photos[number])) for number in range(200, 400) if in_colour_and_full(photos[number])]
    right = [int(np.argmin([np.abs(found - each).mean() for each in seen])) == label for label, found in new]
    assert len(right) > 100
    assert fmean(right) > 0.9, "chance is 0.25"


def test_generated_tree_is_identical_on_every_machine(tree: Path, tmp_path: Path) -> None:
    assert hashlib.sha1(photographs.noise_field().tobytes()).hexdigest()[:8] == "80ffb672"
    generate(tmp_path / "again", generated_image_folder(IMAGES, CLASSES), lambda done: None)
    files = sorted(path.relative_to(tree) for path in tree.rglob("*.JPEG"))
    assert [(tmp_path / "again" / file).read_bytes() for file in files] == [(tree / file).read_bytes() for file in files]
    assert len(files) == IMAGES + CLASSES
