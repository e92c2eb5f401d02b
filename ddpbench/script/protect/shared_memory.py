"""Segments of ``multiprocessing.shared_memory`` that existed before the script: it reads them, and writes to a copy.

Other segments are the script's, and are left alone: its processes share them.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]  # without a stub
import os
import posix
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.overlay import MEMORY_FOLDER, Overlay, mode_of
from ddpbench.script.protect.updates import identity


def redirect_shared_memory(overlay: Overlay, changes: Changes, is_own: Callable[[], bool]) -> None:
    """Replace the functions that open and remove segments, and keep the resource tracker, a process, from removing the user's."""
    shared: Any = _posixshmem
    tracker: Any = resource_tracker
    system_open, system_unlink = shared.shm_open, shared.shm_unlink
    began_ns = _began_ns(overlay.scratch)

    def is_redirected(path: str) -> bool:
        """Whether a segment is older than the scratch folder, or has been removed or replaced since."""
        if is_own():
            return False
        with suppress(OSError):
            return mode_of(overlay.root + path) > 0 or posix.stat(path).st_ctime_ns < began_ns
        return False

    def shm_open(name: str, flags: int, mode: int = 0o777) -> int:
        path = MEMORY_FOLDER + name.lstrip("/")
        if not is_redirected(path):
            return int(system_open(name, flags, mode))
        if flags & (os.O_CREAT | os.O_TRUNC):
            return posix.open(changes.opened(path, flags), flags | os.O_CLOEXEC, mode)
        place = changes.opened(path, os.O_RDONLY)
        if place != path:
            return posix.open(place, flags | os.O_CLOEXEC)
        descriptor = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
        changes.updates.segments[identity(descriptor)] = path
        return descriptor

    def shm_unlink(name: str) -> None:
        path = MEMORY_FOLDER + name.lstrip("/")
        if is_redirected(path):
            changes.remove(path)
        else:
            system_unlink(name)

    def tracked(function: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def track(name: str, kind: str) -> None:
            if kind != "shared_memory" or not is_redirected(MEMORY_FOLDER + name.lstrip("/")):
                function(name, kind)

        return track

    shared.shm_open, shared.shm_unlink = shm_open, shm_unlink
    tracker.register, tracker.unregister = tracked(tracker.register), tracked(tracker.unregister)


def _began_ns(scratch: str) -> int:
    """When the first process has begun to use the scratch folder."""
    path = f"{scratch}/began"
    with suppress(FileExistsError):
        posix.close(posix.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return posix.stat(path).st_mtime_ns
