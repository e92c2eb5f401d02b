"""How a made photograph looks: grain with a photograph's spectrum over the coloured squares of its class, as a JPEG.

What a file costs to read and to decode hangs on its bytes and its pixels, and a net learns the squares. Sizes, qualities and odd
formats are drawn as ImageNet has them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Pixels = npt.NDArray[np.int16]
    Random = np.random.RandomState  # its numbers are fixed for good, which those of numpy's Generator are not

PHOTO_VERSION = 1
"""Raised whenever the same number gives another photograph."""

SIZES = (
    (38, (500, 500), (375, 375)),
    (11, (375, 375), (500, 500)),
    (14, (500, 500), (333, 334)),
    (5, (333, 334), (500, 500)),
    (8, (500, 500), (280, 460)),
    (3, (500, 500), (500, 500)),
    (16, (120, 480), (110, 400)),
    (2, (640, 640), (480, 480)),
    (2, (1024, 1024), (683, 768)),
    (1, (1600, 1600), (1067, 1200)),
)
"""Of a hundred photographs so many are of a width and of a height between these, in pixels."""

MAX_DRAWN_WIDTH, MAX_DRAWN_HEIGHT = 640, 500
"""Pixels of the largest that is drawn in full; a larger one is drawn small and enlarged, and so has as little detail as they have."""

QUALITIES = (82, 94)
"""Of JPEG, the lowest and the highest."""

GREYSCALE_EVERY = 50
"""One in so many is."""

CMYK_EVERY, FIRST_CMYK = 2000, 7
"""One in so many is, number 7 the first, so that a small set has one too."""

NOISE_SIDE = 1024
"""Pixels a side of the one field of grain, of which every photograph is a window."""

CONTRAST, COLOURFULNESS = 54, 0.3
"""Standard deviation of grain, in levels of 255; what each colour has alone, over what all three share."""

MIN_CONTRAST, MAX_CONTRAST, FULL_CONTRAST = 7, 31, 16
"""A photograph has that many parts at least and at most of the full contrast, so that some files are light and some heavy."""

GREY = 128

CELL, CELLS = 25, 5
"""Pixels a side of the squares of a class, and squares a side of the tile that they make, which repeats."""

TINT, CELL_TINT = 40, 24
"""Levels that the colour of a class lies off grey at most, and each of its squares off that."""

MEAN_BYTES = 110_300
"""Of a file, measured over 4,000."""


def write_photo(number: int, label: int, held_out: bool, file: BinaryIO) -> None:
    """Writes the JPEG of that number, of class ``label``: the same on every machine. Takes 2 ms of a core.

    While PIL encodes it leaves the interpreter to other threads only where ``file`` is a file of the system.

    Measured over 4,000: 110 kB and 467 x 387 pixels in the mean, 104 kB and 500 x 375 in the median, 30 to 176 kB from the 5th to
    the 95th percentile, up to 954 kB; 2.2% grey, two in CMYK. ImageNet's training images have 108 kB in the mean. PIL decodes one
    in 1.25 ms of a core; with crop, flip and normalisation a core does 400 to 420 a second, beside 450 of JPEGs of 82 kB.
    """
    import numpy as np
    from PIL import Image

    own = np.random.RandomState([number, int(held_out)])
    width, height = _size(own)
    shrunk = max(1.0, width / MAX_DRAWN_WIDTH, height / MAX_DRAWN_HEIGHT)
    drawn_width, drawn_height = round(width / shrunk), round(height / shrunk)
    top, left = own.randint(NOISE_SIDE - drawn_height), own.randint(NOISE_SIDE - drawn_width)
    window = (
        noise_field()[top : top + drawn_height, left : left + drawn_width] * own.randint(MIN_CONTRAST, MAX_CONTRAST + 1) // FULL_CONTRAST
    )
    pixels = (window + _squares(label)[:drawn_height, :drawn_width]).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    if shrunk > 1:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    quality = own.randint(QUALITIES[0], QUALITIES[1] + 1)
    if number % CMYK_EVERY == FIRST_CMYK:
        image = image.convert("CMYK")
    elif own.randint(GREYSCALE_EVERY) == 0:
        image = image.convert("L")
    image.save(file, "JPEG", quality=int(quality), subsampling="4:2:0")


def _size(own: Random) -> tuple[int, int]:
    """Width and height, in pixels."""
    place = own.randint(sum(share for share, _, _ in SIZES))
    for share, widths, heights in SIZES:
        if place < share:
            return int(own.randint(widths[0], widths[1] + 1)), int(own.randint(heights[0], heights[1] + 1))
        place -= share
    raise AssertionError("drawn below the sum of the shares")


@lru_cache(maxsize=128)
def _squares(label: int) -> Pixels:
    """The tile of a class, side by side, (HIGHEST, at least WIDEST, 3)."""
    import numpy as np

    own = np.random.RandomState(label)
    tile = GREY + own.randint(-TINT, TINT + 1, 3) + own.randint(-CELL_TINT, CELL_TINT + 1, (CELLS, CELLS, 3))
    period = CELL * CELLS
    return np.tile(tile.repeat(CELL, 0).repeat(CELL, 1), (-(-MAX_DRAWN_HEIGHT // period), -(-MAX_DRAWN_WIDTH // period), 1)).astype(
        np.int16
    )


@lru_cache(maxsize=1)
def noise_field() -> Pixels:
    """Noise whose amplitude falls as one over the frequency, (S, S, 3): one field that the colours share, and one of each."""
    import numpy as np

    own = np.random.RandomState(0)
    frequency = np.hypot(np.fft.fftfreq(NOISE_SIDE)[:, None], np.fft.rfftfreq(NOISE_SIDE))
    frequency[0, 0] = np.inf
    fields = [np.fft.irfft2(np.fft.rfft2(own.random_sample((NOISE_SIDE, NOISE_SIDE))) / frequency) for _ in range(4)]
    shared, *each = (field / field.std() for field in fields)
    colours = np.stack([shared + COLOURFULNESS * field for field in each], -1)
    return (CONTRAST * colours).round().astype(np.int16)
