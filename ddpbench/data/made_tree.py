"""Made JPEGs in a folder tree like ImageNet's, as heavy to read and decode as photographs: for where ImageNet is not at hand."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ddpbench.data.fetch import alone
from ddpbench.machine.host import usable_cores
from ddpbench.record.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Pixels = npt.NDArray[np.int16]

WIDTH, HEIGHT = 500, 375
QUALITY = 88

SIDE = 1024
"""Pixels a side of the one field of grain, of which every image is a window."""

CONTRAST, COLOURFULNESS = 54, 0.3
"""Standard deviation of grain, in levels of 255; what each colour has alone, over what all three share."""

FLATTEST, RICHEST, FULL = 9, 24, 16
"""An image has that many parts at least and at most of the full contrast, so that some files are light and some heavy."""

GREY = 128

CELL, CELLS = 25, 5
"""Pixels a side of the squares of a class, and squares a side of the tile that they make; a picture is 4 x 3 tiles."""

TINT, MARK = 40, 24
"""Levels that the colour of a class lies off grey at most, and each of its squares off that."""

HELD_OUT = 25
"""One image is held out for so many to train on, and one a class at least."""

MARKER = ".ddpbench-made"
"""The file in the folder that tells what it holds."""


def made_tree(folder: Path, images: int, classes: int) -> Path:
    """``folder`` with ``images`` JPEGs in train/ and a few in val/, in ``classes`` folders each, made unless they are there.

    A photograph's spectrum falls with the frequency, and so does that of the grain here: a file has about 106 kB, as ImageNet's
    have. Grain lies over a tile of coloured squares, which is the class's, so that a net can learn it. The same images on every
    machine. Takes about 5 ms an image and core. However many processes ask at the same time, one makes the set, and the others
    wait for it. Raises UsageError where ``folder`` holds something else, or cannot be written.
    """
    content = f"{images} images, {classes} classes\n"
    if _holds(folder, content):
        return folder
    with alone(folder.parent):
        if not _holds(folder, content):
            unfinished = folder.with_name(f".{folder.name}.unfinished")
            try:
                _make(unfinished, images, classes)
                (unfinished / MARKER).write_text(content)
                unfinished.replace(folder)
            except OSError as problem:
                raise UsageError(f"cannot make images in '{folder}': {problem.strerror}", "choose another folder") from problem
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def is_made(directory: str) -> bool:
    """Whether the images in ``directory`` were made here."""
    return (Path(directory) / MARKER).is_file()


def _holds(folder: Path, content: str) -> bool:
    """Whether the set is there, whole. Raises UsageError where something else is."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if is_made(str(folder)) and (folder / MARKER).read_text() == content:
        return True
    raise UsageError(f"'{folder}' holds something else than the made set of {content.strip()}", "name another folder, or take it away")


def _make(folder: Path, images: int, classes: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    grain = _grain()
    with ThreadPoolExecutor(max(1, int(usable_cores()))) as pool:  # numpy and PIL leave the interpreter to other threads
        for part, count in (("train", images), ("val", max(classes, images // HELD_OUT))):
            make_class = partial(_make_class, folder / part, count, classes, grain)
            list(pool.map(make_class, range(classes)))


def _make_class(folder: Path, images: int, classes: int, grain: Pixels, label: int) -> None:
    """Writes every ``classes``-th of ``images``, from number ``label`` on."""
    import numpy as np
    from PIL import Image

    name = f"n{label:08d}"
    (folder / name).mkdir(parents=True)
    picture = _picture(label)
    own = np.random.RandomState([label, int(folder.name == "val")])
    for number in range(label, images, classes):
        top, left = own.randint(SIDE - HEIGHT), own.randint(SIDE - WIDTH)
        window = grain[top : top + HEIGHT, left : left + WIDTH] * own.randint(FLATTEST, RICHEST + 1) // FULL
        pixels = (window + picture).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{name}_{number}.JPEG", quality=QUALITY)


def _picture(label: int) -> Pixels:
    """The tile of a class, side by side, (H, W, 3)."""
    import numpy as np

    own = np.random.RandomState(label)
    tile = GREY + own.randint(-TINT, TINT + 1, 3) + own.randint(-MARK, MARK + 1, (CELLS, CELLS, 3))
    period = CELL * CELLS
    return np.tile(tile.repeat(CELL, 0).repeat(CELL, 1), (HEIGHT // period, WIDTH // period, 1)).astype(np.int16)


def _grain() -> Pixels:
    """Noise whose amplitude falls as one over the frequency, (S, S, 3): one field that the colours share, and one of each."""
    import numpy as np

    own = np.random.RandomState(0)  # its numbers are fixed for good, which those of numpy's Generator are not
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE))
    frequency[0, 0] = np.inf
    fields = [np.fft.irfft2(np.fft.rfft2(own.random_sample((SIDE, SIDE))) / frequency) for _ in range(4)]
    shared, *each = (field / field.std() for field in fields)
    colours = np.stack([shared + COLOURFULNESS * field for field in each], -1)
    return (CONTRAST * colours).round().astype(np.int16)
