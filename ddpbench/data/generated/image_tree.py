"""Made JPEGs in a folder tree like ImageNet's, as heavy to read and decode as photographs: for where ImageNet is not at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ddpbench.data.generated.folder import MadeSet
from ddpbench.data.generated.photographs import MEAN_BYTES, RECIPE, grain, photograph
from ddpbench.machine.host import usable_cores

HELD_OUT = 25
"""One image is held out for so many to train on, and one a class at least."""

LOT = 32
"""Images of a lot, at most."""


def made_tree(images: int, classes: int) -> MadeSet:
    """``images`` JPEGs in train/ and a few in val/, in ``classes`` folders each, made in threads on all usable cores."""
    held_out = max(classes, images // HELD_OUT)
    return MadeSet(
        name=f"imagenet-{images}x{classes}-recipe{RECIPE}",
        title=f"{images:,} images of {classes:,} classes in the shape of ImageNet",
        images=images,
        held_out=held_out,
        classes=classes,
        files=images + held_out,
        size=(images + held_out) * MEAN_BYTES,
        write=partial(_write, {"train": images, "val": held_out}, classes),
    )


def _write(parts: Mapping[str, int], classes: int, folder: Path, tell: Callable[[int], None]) -> None:
    grain()  # once, before many threads ask for it
    for part in parts:
        for label in range(classes):
            (folder / part / _name(label)).mkdir(parents=True)
    pool, done = ThreadPoolExecutor(max(1, int(usable_cores()))), 0  # numpy and PIL leave the interpreter to other threads
    try:
        for written in pool.map(partial(_write_lot, folder), _lots(parts, classes)):
            done += written
            tell(done)
    finally:
        pool.shutdown(cancel_futures=True)


Lot = tuple[str, int, range]
"""Images that one thread makes at a time: their part, their class, their numbers."""


def _lots(parts: Mapping[str, int], classes: int) -> Iterator[Lot]:
    """All of a set; every ``classes``-th image is of one class."""
    for part, count in parts.items():
        for label in range(classes):
            own = range(label, count, classes)
            yield from ((part, label, own[start : start + LOT]) for start in range(0, len(own), LOT))


def _write_lot(folder: Path, lot: Lot) -> int:
    part, label, numbers = lot
    name = _name(label)
    for number in numbers:
        with (folder / part / name / f"{name}_{number}.JPEG").open("wb") as file:
            photograph(number, label, held_out=part == "val", into=file)
    return len(numbers)


def _name(label: int) -> str:
    """As ImageNet's class folders are named."""
    return f"n{label:08d}"
