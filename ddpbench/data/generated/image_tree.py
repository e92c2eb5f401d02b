"""Generated JPEGs in a folder tree like ImageNet's, for use without ImageNet.

Reading and decoding them costs as much as photographs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ddpbench.data.generated.folder import GeneratedDataset
from ddpbench.data.generated.photographs import MEAN_BYTES, PHOTO_VERSION, noise_field, write_photo
from ddpbench.machine.host import usable_cores

TRAIN_PER_HELD_OUT = 25
"""Training images per held-out image; every class has at least one held-out image."""

MAX_CHUNK_IMAGES = 32
"""Maximum number of images per chunk."""


def generated_image_folder(images: int, classes: int) -> GeneratedDataset:
    """``images`` JPEGs in train/ and a few in val/, in ``classes`` folders each.

    They are generated in threads on all usable cores.
    """
    held_out = max(classes, images // TRAIN_PER_HELD_OUT)
    return GeneratedDataset(
        name=f"imagenet-{images}x{classes}-recipe{PHOTO_VERSION}",
        title=f"{images:,} ImageNet-like images of {classes:,} classes",
        train_images=images,
        held_out_images=held_out,
        classes=classes,
        num_files=images + held_out,
        size_bytes=(images + held_out) * MEAN_BYTES,
        write=partial(_write, {"train": images, "val": held_out}, classes),
        modules=("PIL",),
    )


def _write(splits: Mapping[str, int], classes: int, folder: Path, on_progress: Callable[[int], None]) -> None:
    noise_field()  # compute the cached field once, before the threads use it
    for part in splits:
        for label in range(classes):
            (folder / part / _class_name(label)).mkdir(parents=True)
    pool, done = ThreadPoolExecutor(max(1, int(usable_cores()))), 0  # numpy and PIL release the GIL
    try:
        for written in pool.map(partial(_write_chunk, folder), _chunks(splits, classes)):
            done += written
            on_progress(done)
    finally:
        pool.shutdown(cancel_futures=True)


Chunk = tuple[str, int, range]
"""Images that one thread generates at a time: split, class, image numbers."""


def _chunks(splits: Mapping[str, int], classes: int) -> Iterator[Chunk]:
    """All chunks of the splits; every ``classes``-th image is of the same class."""
    for part, count in splits.items():
        for label in range(classes):
            numbers = range(label, count, classes)
            yield from ((part, label, numbers[start : start + MAX_CHUNK_IMAGES]) for start in range(0, len(numbers), MAX_CHUNK_IMAGES))


def _write_chunk(folder: Path, chunk: Chunk) -> int:
    part, label, numbers = chunk
    name = _class_name(label)
    for number in numbers:
        with (folder / part / name / f"{name}_{number}.JPEG").open("wb") as file:
            write_photo(number, label, held_out=part == "val", file=file)
    return len(numbers)


def _class_name(label: int) -> str:
    """Folder name in ImageNet's style."""
    return f"n{label:08d}"
