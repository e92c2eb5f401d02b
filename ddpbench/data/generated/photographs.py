"""Generated photographs, as JPEG.

They show grain with the spectrum of photographs over the coloured squares of a class. The cost of reading and decoding a file depends on
its bytes and pixels; a network learns the squares. Sizes, qualities and unusual formats have the same distribution as in ImageNet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Pixels = npt.NDArray[np.int16]
    Random = np.random.RandomState  # its stream is fixed for all numpy versions, unlike Generator's

PHOTO_VERSION = 1
"""Increased whenever the same number yields another photograph."""

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
"""Per hundred photographs: how many, and their range of widths and of heights in pixels."""

MAX_DRAWN_WIDTH, MAX_DRAWN_HEIGHT = 640, 500
"""Maximum size drawn at full resolution, in pixels.

Larger photographs are drawn at this size and enlarged, so they have no more detail.
"""

QUALITIES = (82, 94)
"""Minimum and maximum JPEG quality."""

GREYSCALE_EVERY = 50
"""One in this many photographs is greyscale, on average."""

CMYK_EVERY, FIRST_CMYK = 2000, 7
"""One in this many photographs is CMYK, the first being number 7, so that a small dataset has one too."""

NOISE_SIDE = 1024
"""Side in pixels of the shared noise field; every photograph is a window of it."""

CONTRAST, COLOURFULNESS = 54, 0.3
"""Standard deviation of the grain, in levels of 255, and strength of the noise per colour relative to the shared noise."""

MIN_CONTRAST, MAX_CONTRAST, FULL_CONTRAST = 7, 31, 16
"""Minimum and maximum contrast in units of 1/FULL_CONTRAST, so that file sizes vary."""

GREY = 128

CELL, CELLS = 25, 5
"""Side of the squares of a class in pixels, and squares per side of the repeating tile."""

TINT, CELL_TINT = 40, 24
"""Maximum difference of a class's colour from grey, and of its squares from that colour, in levels."""

MEAN_BYTES = 110_300
"""Mean file size, measured over 4,000."""


def write_photo(number: int, label: int, held_out: bool, file: BinaryIO) -> None:
    """Write the JPEG of photograph ``number``, of class ``label``.

    It is the same on every machine. Takes 2 ms of a core. PIL releases the GIL while encoding only if ``file`` is an operating-system
    file.

    Measured over 4,000: mean 110 kB and 467 x 387 pixels, median 104 kB and 500 x 375, 30 to 176 kB from the 5th to the 95th percentile,
    up to 954 kB; 2.2% grey, two in CMYK. ImageNet's training images have a mean of 108 kB. PIL decodes one in 1.25 ms of a core; with
    crop, flip and normalisation a core processes 400 to 420 per second, compared with 450 for JPEGs of 82 kB.
    """
    import numpy as np
    from PIL import Image

    rng = np.random.RandomState([number, int(held_out)])
    width, height = _size(rng)
    shrink_factor = max(1.0, width / MAX_DRAWN_WIDTH, height / MAX_DRAWN_HEIGHT)
    drawn_width, drawn_height = round(width / shrink_factor), round(height / shrink_factor)
    top, left = rng.randint(NOISE_SIDE - drawn_height), rng.randint(NOISE_SIDE - drawn_width)
    window = (
        noise_field()[top : top + drawn_height, left : left + drawn_width] * rng.randint(MIN_CONTRAST, MAX_CONTRAST + 1) // FULL_CONTRAST
    )
    pixels = (window + _squares(label)[:drawn_height, :drawn_width]).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    if shrink_factor > 1:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    quality = rng.randint(QUALITIES[0], QUALITIES[1] + 1)
    if number % CMYK_EVERY == FIRST_CMYK:
        image = image.convert("CMYK")
    elif rng.randint(GREYSCALE_EVERY) == 0:
        image = image.convert("L")
    image.save(file, "JPEG", quality=int(quality), subsampling="4:2:0")


def _size(rng: Random) -> tuple[int, int]:
    """Random width and height, in pixels."""
    draw = rng.randint(sum(share for share, _, _ in SIZES))
    for share, widths, heights in SIZES:
        if draw < share:
            return int(rng.randint(widths[0], widths[1] + 1)), int(rng.randint(heights[0], heights[1] + 1))
        draw -= share
    raise AssertionError("the draw is below the sum of the shares")


@lru_cache(maxsize=128)
def _squares(label: int) -> Pixels:
    """Repeated tile of a class, at least (MAX_DRAWN_HEIGHT, MAX_DRAWN_WIDTH, 3)."""
    import numpy as np

    rng = np.random.RandomState(label)
    tile = GREY + rng.randint(-TINT, TINT + 1, 3) + rng.randint(-CELL_TINT, CELL_TINT + 1, (CELLS, CELLS, 3))
    period = CELL * CELLS
    return np.tile(tile.repeat(CELL, 0).repeat(CELL, 1), (-(-MAX_DRAWN_HEIGHT // period), -(-MAX_DRAWN_WIDTH // period), 1)).astype(
        np.int16
    )


@lru_cache(maxsize=1)
def noise_field() -> Pixels:
    """Noise with an amplitude of one over the frequency, (S, S, 3).

    The sum of one field shared by all colours, and one field per colour.
    """
    import numpy as np

    rng = np.random.RandomState(0)
    frequency = np.hypot(np.fft.fftfreq(NOISE_SIDE)[:, None], np.fft.rfftfreq(NOISE_SIDE))
    frequency[0, 0] = np.inf
    fields = [np.fft.irfft2(np.fft.rfft2(rng.random_sample((NOISE_SIDE, NOISE_SIDE))) / frequency) for _ in range(4)]
    shared, *each = (field / field.std() for field in fields)
    colours = np.stack([shared + COLOURFULNESS * field for field in each], -1)
    noise: Pixels = (CONTRAST * colours).round().astype(np.int16)
    return noise
