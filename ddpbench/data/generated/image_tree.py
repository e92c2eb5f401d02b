"""Made JPEGs in a folder tree like ImageNet's, as heavy to read and decode as photographs: for where ImageNet is not at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ddpbench.data.generated.folder import GeneratedDataset
from ddpbench.data.generated.photographs import MEAN_BYTES, PHOTO_VERSION, noise_field, write_photo
from ddpbench.machine.host import usable_cores

TRAIN_PER_HELD_OUT = 25
"""One image is held out for so many to train on, and one a class at least."""

MAX_CHUNK_IMAGES = 32
"""Images of a lot, at most."""


def generated_image_folder(images: int, classes: int) -> GeneratedDataset:
    """``images`` JPEGs in train/ and a few in val/, in ``classes`` folders each, made in threads on all usable cores."""
    held_out = max(classes, images // TRAIN_PER_HELD_OUT)
    return GeneratedDataset(
        name=f"imagenet-{images}x{classes}-recipe{PHOTO_VERSION}",
        title=f"{images:,} images of {classes:,} classes in the shape of ImageNet",
        train_images=images,
        held_out_images=held_out,
        classes=classes,
        num_files=images + held_out,
        size_bytes=(images + held_out) * MEAN_BYTES,
        write=partial(_write, {"train": images, "val": held_out}, classes),
    )


def _write(splits: Mapping[str, int], classes: int, folder: Path, on_progress: Callable[[int], None]) -> None:
    noise_field()  # once, before many threads ask for it
    for part in splits:
        for label in range(classes):
            (folder / part / _class_name(label)).mkdir(parents=True)
    pool, done = ThreadPoolExecutor(max(1, int(usable_cores()))), 0  # numpy and PIL leave the interpreter to other threads
    try:
        for written in pool.map(partial(_write_chunk, folder), _chunks(splits, classes)):
            done += written
            on_progress(done)
    finally:
        pool.shutdown(cancel_futures=True)


Chunk = tuple[str, int, range]
"""Images that one thread makes at a time: their part, their class, their numbers."""


def _chunks(splits: Mapping[str, int], classes: int) -> Iterator[Chunk]:
    """All of a set; every ``classes``-th image is of one class."""
    for part, count in splits.items():
        for label in range(classes):
            own = range(label, count, classes)
            yield from ((part, label, own[start : start + MAX_CHUNK_IMAGES]) for start in range(0, len(own), MAX_CHUNK_IMAGES))


def _write_chunk(folder: Path, chunk: Chunk) -> int:
    part, label, numbers = chunk
    name = _class_name(label)
    for number in numbers:
        with (folder / part / name / f"{name}_{number}.JPEG").open("wb") as file:
            write_photo(number, label, held_out=part == "val", file=file)
    return len(numbers)


def _class_name(label: int) -> str:
    """As ImageNet's class folders are named."""
    return f"n{label:08d}"
