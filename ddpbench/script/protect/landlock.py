"""Landlock: the kernel itself refuses writes outside of given folders, also from C++, and from programs that the script starts.

Linux 5.19 and later. No privilege is needed, and nothing undoes it. https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls, with the same numbers on x86-64 and ARM."""

GET_VERSION = 1
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38

WRITE_FILE = 1 << 1
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
"""To remove folders and files, and to create every kind of them."""

REFER, TRUNCATE = 1 << 13, 1 << 14
"""To rename to another folder, from version 2 on, and to truncate, from version 3 on. Version 1 forbids renaming everywhere."""


class RulesetAttr(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def restrict_writes(writable: Iterable[str]) -> bool:
    """Allow this thread, and all threads and processes that it will start, to write below ``writable`` only.

    Files that are open stay so. False, without any effect, if the kernel has no Landlock, or an older version.
    """
    if os.path.exists("/proc/driver/nvidia") and not os.path.exists("/dev/nvidia-uvm"):
        return False  # CUDA creates the device with a setuid program, which would be forbidden, too
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, GET_VERSION)
    if version < 2:
        return False
    access = WRITE_FILE | REMOVE_AND_MAKE | REFER | (TRUNCATE if version >= 3 else 0)
    attr = RulesetAttr(access)
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(attr), ctypes.sizeof(attr), 0)
    if ruleset < 0:
        return False
    try:
        return (
            all(_allow(libc, ruleset, path, access) for path in writable)
            and libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            and libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
        )
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, folder: str, access: int) -> bool:
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = PathBeneathAttr(access, descriptor)
        return bool(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0) == 0)
    finally:
        os.close(descriptor)
