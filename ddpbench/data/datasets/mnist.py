"""MNIST's IDX files, gzipped or not, in torchvision's layout.

The files are DIR/MNIST/raw/train-images-idx3-ubyte etc., or the same in DIR itself.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ddpbench.data.in_memory import InMemoryDataset, Split, os_error_as_usage_error
from ddpbench.record.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SIDE, CLASSES = 28, 10
LAYOUT = "DIR/MNIST/raw/train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz are required, in the layout of torchvision.datasets.MNIST"
_PREFIX: dict[Split, str] = {"train": "train", "held-out": "t10k"}


def files(directory: str, part: Split) -> list[Path]:
    """Image file and label file of ``part`` in ``directory``; empty if one of them is missing."""
    for folder in (Path(directory) / "MNIST" / "raw", Path(directory)):
        names = (f"{_PREFIX[part]}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
        candidates = (next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None) for name in names)
        found = [path for path in candidates if path]
        if len(found) == 2:
            return found
    return []


def read(directory: str, part: Split) -> InMemoryDataset:
    """The images of ``part`` in ``directory``, whose files exist.

    Raises UsageError naming the file that is not valid IDX.
    """
    import numpy as np

    images_file, labels_file = files(directory, part)
    images, labels = _idx(images_file, 3), _idx(labels_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise _damaged(images_file, f"its images are {images.shape[1]} x {images.shape[2]} instead of {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise _damaged(labels_file, f"{len(labels):,} labels for {len(images):,} images")
    if labels.max(initial=0) >= CLASSES:
        raise _damaged(labels_file, f"a label is not between 0 and {CLASSES - 1}")
    return InMemoryDataset(images[..., None], labels.astype(np.int64), "mnist")


def _idx(file: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The byte array in ``file``: magic number, length of each dimension, data (yann.lecun.com/exdb/mnist)."""
    import numpy as np

    with os_error_as_usage_error():
        content = file.read_bytes()
    try:
        content = gzip.decompress(content) if file.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise _damaged(file, f"cannot be decompressed, {problem}") from problem
    header = 4 * (1 + dimensions)
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise _damaged(file, "it does not start with the magic number of one")
    shape = [int.from_bytes(content[offset : offset + 4], "big") for offset in range(4, header, 4)]
    if len(content) != header + prod(shape):
        raise _damaged(file, f"{len(content):,} bytes instead of {header + prod(shape):,}, possibly truncated")
    found: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # torch needs a writable array
    return found


def _damaged(file: Path, why: str) -> UsageError:
    return UsageError(f"'{file}' is not a valid MNIST IDX file: {why}", "download the dataset again")
