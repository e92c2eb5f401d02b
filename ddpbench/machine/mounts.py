"""Which file system a file lies on."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def file_system(path: str) -> str:
    """The type of the file system that ``path`` lies on, links followed: ``ext4``, ``nfs4``, ``tmpfs``, ``fuse.sshfs``; ``-`` if untold."""
    there = os.path.realpath(path)
    kind, longest = "-", 0
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint
        if len(point) >= longest and Path(there).is_relative_to(point):  # of two mounts on one point the later hides the other
            kind, longest = mount.fstype, len(point)
    return kind
