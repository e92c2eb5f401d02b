"""Scratch folders: new ones, which no one else has prepared, and what is left of old ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.start_time import process_start_s
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import UsageError

PREFIX = "ddpbench-scratch-"
"""Begin of the names of scratch folders."""

LOCK_FILE = "lock"
"""A process that uses the folder has a shared lock on this file as long as it lives."""

NEW_S = 60.0
"""Seconds that a process gets to lock a folder that it has created."""

MAX_NAMES = 10
"""Names that the ranks of a launcher try: one that someone else has taken cannot be theirs."""


@dataclass(frozen=True)
class CleanedFolders:
    """Scratch folders that were removed, their size, and how many could not be removed or are in use."""

    removed: int
    removed_bytes: int
    failed: int
    in_use: int


def scratch_folder(rank_env: RankEnv) -> Path:
    """The scratch folder of this process, locked. The ranks that one launcher has started on a node share it.

    Raises UsageError if all names that the ranks would share are taken.
    """
    if shared := os.environ.pop(EnvVar.DDPBENCH_SCRATCH, ""):  # from --gpus; a launcher in the script has its own
        folder = Path(shared)
        if not is_own_folder(folder):
            raise UsageError(f"{EnvVar.DDPBENCH_SCRATCH}={shared} is not a private folder of this user")
    elif rank_env.local_world_size > 1:
        folder = _shared_folder(rank_env)
    else:
        return new_scratch_folder()
    _lock(folder)
    return folder


def new_scratch_folder() -> Path:
    """A new folder, locked as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _lock(folder)
    return folder


def is_own_folder(folder: Path) -> bool:
    """Whether it is a folder, no symlink to one, of this user, and private."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


def _shared_folder(rank_env: RankEnv) -> Path:
    """The first of some names, which follow from the launcher, that is free, or is the folder of another of its ranks."""
    launcher = f"{os.getppid()}-{100 * (process_start_s(os.getppid()) or 0.0):.0f}-{rank_env.restart_count}"
    for number in range(MAX_NAMES):
        folder = Path(tempfile.gettempdir(), f"{PREFIX}{launcher}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if is_own_folder(folder):
            return folder
    raise UsageError(f"cannot create a scratch folder: someone else has taken {folder} and {MAX_NAMES - 1} others", "set TMPDIR")


_locks: list[int] = []
"""Descriptors of locks, which are open as long as the process lives, and in its forked children."""


def _lock(folder: Path) -> None:
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _locks.append(descriptor)


# old folders


def clean_scratch_folders() -> CleanedFolders:
    """Remove the scratch folders of this user in the temporary folder that no living process uses."""
    removed = removed_bytes = failed = in_use = 0
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if not is_own_folder(folder):
            continue
        if _is_in_use(folder):
            in_use += 1
            continue
        size = folder_size(folder)
        if _remove(folder):
            removed, removed_bytes = removed + 1, removed_bytes + size
        else:
            failed += 1
    return CleanedFolders(removed, removed_bytes, failed, in_use)


def folder_size(folder: Path) -> int:
    """Bytes of the disk that the files in a folder take; each once, whatever its names."""
    return sum({(status.st_dev, status.st_ino): 512 * status.st_blocks for status in _file_statuses(folder)}.values())


def _file_statuses(folder: Path) -> Iterator[os.stat_result]:
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # just removed
                yield os.lstat(f"{parent}/{name}")


def _is_in_use(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return time.time() - folder.stat().st_mtime < NEW_S
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(folder: Path) -> bool:
    """Remove a folder, also if the script has made folders in it read-only."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            with suppress(OSError):
                if stat.S_ISDIR(os.lstat(f"{parent}/{name}").st_mode):
                    os.chmod(f"{parent}/{name}", 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
