"""A folder that holds a made set: whole, or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddpbench.machine.file_lock import alone
from ddpbench.machine.signals import heard_by, stop
from ddpbench.record.errors import UsageError

MARKER = ".ddpbench-made"
"""The file in the folder that tells what it holds."""

DEPTH = 2
"""Folders between a set and its images, at most: MNIST/raw."""

ELSEWHERE = "choose another folder; XDG_CACHE_HOME says where the cache lies"


@dataclass(frozen=True, kw_only=True)
class MadeSet:
    """What is made, and how: ``write`` puts it into a folder, and tells time and again how many images are done.

    ``name`` is no other set's, nor that of this one once it is made in another way.
    """

    name: str
    title: str
    images: int  # to train on
    held_out: int
    classes: int
    files: int
    size: int  # bytes, about
    write: Callable[[Path, Callable[[int], None]], None]


def is_made(directory: str) -> bool:
    """Whether the images in ``directory`` were made here: it holds a made set, or is a folder of one."""
    folder = Path(directory).absolute()
    return any((each / MARKER).is_file() for each in (folder, *folder.parents[:DEPTH]))


def holds(folder: Path, made: MadeSet) -> bool:
    """Whether ``made`` lies in ``folder``, whole. Raises UsageError where something else does, or it cannot be read."""
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
        if (folder / MARKER).is_file() and (folder / MARKER).read_text() == made.name:
            return sum(len(names) for _, _, names in os.walk(folder)) > made.files  # beside them lies the marker
    except OSError as problem:
        raise UsageError(f"cannot read '{folder}': {problem.strerror}", ELSEWHERE) from problem
    raise UsageError(f"'{folder}' holds something else than {made.title}", "name another folder, or take it away")


def make(folder: Path, made: MadeSet, tell: Callable[[int], None]) -> None:
    """Makes ``folder`` hold ``made``, unless it does. Of the processes that ask at the same time one makes it, the others wait.

    It comes into being under its name by one renaming, so that whoever finds it finds all of it. One that has lost files is made
    anew. Raises UsageError where ``folder`` holds something else, or cannot be written.
    """
    if holds(folder, made):
        return
    folder = folder.resolve()
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        with heard_by(stop), alone(folder.parent):
            if not holds(folder, made):
                shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
                _refuse_too_large(folder, made)
                tell(0)
                try:
                    made.write(unfinished, tell)
                    (unfinished / MARKER).write_text(made.name)
                    if folder.exists():
                        shutil.rmtree(folder)
                    unfinished.rename(folder)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as problem:
        where = f": '{problem.filename}'" if problem.filename else ""
        raise UsageError(f"cannot make {made.title} in '{folder}': {problem.strerror}{where}", ELSEWHERE) from problem


def _refuse_too_large(folder: Path, made: MadeSet) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < made.size:
        raise UsageError(
            f"{made.title} take {made.size / 1e9:,.1f} GB, and '{folder.parent}' has {free / 1e9:,.1f} GB free",
            f"fewer images, or {ELSEWHERE}",
        )
