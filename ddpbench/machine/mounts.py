"""Which file system a file lies on."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddpbench.machine.kernel import told

MOUNTS = Path("/proc/self/mountinfo")


def file_system(path: str, mounts: Path = MOUNTS) -> str:
    """The type of the file system that ``path`` lies on, links followed: ``ext4``, ``nfs4``, ``tmpfs``, ``fuse.sshfs``; ``-`` if untold."""
    there = os.path.realpath(path)
    kind, longest = "-", 0
    for line in told(mounts).splitlines():
        mount, _, what = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])  # a space is written \040
        if len(point) >= longest and Path(there).is_relative_to(point):  # of two mounts on one point the later hides the other
            kind, longest = what.split()[0], len(point)
    return kind
