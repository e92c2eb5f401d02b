"""Notices what cannot be prevented: programs change modes, times and attributes of files, and files in shared memory.

Landlock restricts neither ``chmod`` nor ``utime``, and the script needs ``/dev/shm``.
"""

from __future__ import annotations

import os
import posix
import stat
import time
from collections.abc import Iterable

from ddpbench.script.protect.overlay import MEMORY_FOLDER
from ddpbench.script.protect.scratch import PREFIX

MAX_FILES = 5000
"""Files of which the state is known, the nearest to the given folders first."""

MAX_S = 0.5
"""Seconds until the rest is left out: a folder may be on a slow server."""

TEMPORARY = ("torch_", "psm_", "sem.", "nccl-", "cuda.", "__KMP_", "ddpbench-")
"""Begin of the names of files in shared memory that come and go with processes."""

State = tuple[int, int, int, int, int]


class FileStates:
    """The states of the files in some folders, and of those of the user in shared memory, when it is created."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._states = {path: state for path in _files(folders) if (state := _state(path))}

    def changed(self) -> list[str]:
        """The files whose metadata have changed since, and those in shared memory that have changed in any way or are gone.

        Other files that have another size are left out: the script cannot write them, so another process has.
        """
        changed = []
        for path, before in self._states.items():
            after = _state(path)
            if after != before and (path.startswith(MEMORY_FOLDER) or (after is not None and after[0] == before[0])):
                changed.append(path)
        return changed


def _state(path: str) -> State | None:
    """Size, mode, owner, group and time of the last change, which ``touch`` and attributes change, too; None if there is no file."""
    try:
        status = posix.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_size, status.st_mode, status.st_uid, status.st_gid, status.st_ctime_ns


def _files(folders: Iterable[str]) -> list[str]:
    found, end = _files_in_memory(), time.monotonic() + MAX_S
    queue = list(dict.fromkeys(map(os.path.realpath, folders)))
    for folder in queue:
        try:
            entries = list(posix.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(PREFIX):
                    queue.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                found.append(entry.path)
        if len(found) >= MAX_FILES or time.monotonic() > end:
            break
    return list(dict.fromkeys(found))[:MAX_FILES]


def _files_in_memory() -> list[str]:
    try:
        entries = list(posix.scandir(MEMORY_FOLDER))
    except OSError:
        return []
    uid = posix.getuid()
    return [
        entry.path
        for entry in entries
        if not entry.name.startswith(TEMPORARY) and entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == uid
    ]
