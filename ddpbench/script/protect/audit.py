"""Refuses, before it happens, what would change a file of the user and was not redirected."""

from __future__ import annotations

import os
import posix
import re
import shlex
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from ddpbench.script.protect.changes import WRITE_FLAGS
from ddpbench.script.protect.overlay import Overlay, path_of_descriptor
from ddpbench.script.protect.redirect import read_path

PATHS: dict[str, list[tuple[int, int | None]]] = {
    "os.remove": [(0, 1)],
    "os.rmdir": [(0, 1)],
    "os.mkdir": [(0, 2)],
    "os.rename": [(0, 2), (1, 3)],
    "os.link": [(0, 2), (1, 3)],
    "os.symlink": [(1, 2)],
    "os.truncate": [(0, None)],
    "os.chmod": [(0, 2)],
    "os.chown": [(0, 3)],
    "os.utime": [(0, 3)],
    "os.setxattr": [(0, None)],
    "os.removexattr": [(0, None)],
}
"""The arguments of audit events that are changed paths, each with the one that is its ``dir_fd``."""

READ_ONLY_PROGRAMS = {
    *("nvidia-smi", "rocm-smi", "uname", "lscpu", "hostname", "which", "ldconfig", "nproc", "free", "lspci", "id", "whoami", "date"),
    *("cc", "gcc", "g++", "c++", "clang", "clang++", "nvcc", "ptxas", "ld", "ninja", "objdump", "cuobjdump"),
}
"""Programs that change no file of the user. Compilers write where their caller says, which is a cache."""

READ_ONLY_GIT = {"rev-parse", "rev-list", "log", "show", "status", "diff", "describe", "ls-files", "cat-file", "version", "--version"}

TRUSTED_CALLERS = {"torch", "triton", "multiprocessing", "platform", "ctypes", "ddpbench"}
"""Top-level modules that may start any program."""

STARTERS = {"subprocess", "os", "asyncio"}
"""Modules on the stack between a caller and the event."""

SHELL_SYNTAX = re.compile(r"[;&|<>`$()\n]")


class AuditHook:
    """A hook for ``sys.addaudithook``. ``programs_are_safe``: the kernel keeps programs that the script starts from writing."""

    def __init__(
        self, overlay: Overlay, refuse: Callable[[str, str], NoReturn], is_own: Callable[[], bool], programs_are_safe: bool
    ) -> None:
        self._overlay, self._refuse, self._is_own = overlay, refuse, is_own
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._check_open,
            "sqlite3.connect": self._check_database,
            "socket.bind": self._check_bind,
            **{event: self._check_paths(event, paths) for event, paths in PATHS.items()},
        }
        if not programs_are_safe:
            self._handlers |= {
                "subprocess.Popen": lambda executable, words, *_: self._check_program("Popen", words),
                "os.system": lambda command: self._check_program("system", os.fsdecode(command)),
                "os.exec": lambda path, words, _: self._check_program("exec", words),
                "os.posix_spawn": lambda path, words, _: self._check_program("posix_spawn", words),
            }

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        handler = self._handlers.get(event)
        if handler is not None and not self._is_own():
            handler(*arguments)

    # files

    def _check_open(self, path: Any, mode: str | None, flags: int) -> None:
        if not flags & WRITE_FLAGS or isinstance(path, int):
            return
        name = self._users_path(path)
        if name is not None and (stat.S_ISREG(found := _mode_behind_links(name)) or not found):
            self._refuse("open", name)

    def _check_paths(self, event: str, paths: Sequence[tuple[int, int | None]]) -> Callable[..., None]:
        def check(*arguments: Any) -> None:
            if event == "os.truncate" and isinstance(arguments[0], int):
                return  # a file that could be opened for writing, such as new shared memory
            for index, dir_index in paths:
                dir_fd = arguments[dir_index] if dir_index is not None else -1
                name = self._users_path(arguments[index], dir_fd, follow=False)
                if name is not None:
                    self._refuse(event.partition(".")[2], name)

        return check

    def _check_bind(self, bound: socket.socket, address: Any) -> None:
        """A Unix socket is a file at its address, unless that is an abstract one, which begins with a zero byte."""
        if bound.family == socket.AF_UNIX and isinstance(address, str | bytes) and (name := self._users_path(address)) is not None:
            self._refuse("bind", name)

    def _check_database(self, database: Any) -> None:
        text = read_path(database)
        if text is None or text == ":memory:":
            return
        path, _, query = text.removeprefix("file:").partition("?")
        if text.startswith("file:") and re.search(r"(^|&)(mode=(ro|memory)|immutable=1)", query):
            return
        if (name := self._users_path(path if text.startswith("file:") else text)) is not None:
            self._refuse("connect", name)

    def _users_path(self, path: Any, dir_fd: int = -1, follow: bool = True) -> str | None:
        """``path`` as text if what is there is the user's."""
        text = path_of_descriptor(path) if isinstance(path, int) else read_path(path, None if dir_fd == -1 else dir_fd)
        if text is None or text.startswith(f"{self._overlay.scratch}/") or (isinstance(path, int) and not text.startswith("/")):
            return None  # a redirected call, or a pipe
        key, _, _ = self._overlay.locate(text, follow)
        return None if self._overlay.is_free(key) else text

    # programs

    def _check_program(self, action: str, words: Any) -> None:
        if not _is_read_only(words) and _caller() not in TRUSTED_CALLERS:
            self._refuse(action, words if isinstance(words, str) else shlex.join(os.fsdecode(word) for word in words))


def _mode_behind_links(path: str) -> int:
    try:
        return posix.stat(path).st_mode
    except OSError:
        return 0


def _is_read_only(words: Any) -> bool:
    """Whether a command line, of words or for a shell, changes no file."""
    if isinstance(words, str | bytes):
        text = os.fsdecode(words)
        if SHELL_SYNTAX.search(text):
            return False
        try:
            words = shlex.split(text)
        except ValueError:  # an open quote
            return False
    words = [os.fsdecode(word) for word in words]
    if words[:2] == ["/bin/sh", "-c"]:
        return _is_read_only(words[2])
    program, *rest = (os.path.basename(word) for word in words or [""])
    if program == "git":
        while rest and rest[0].startswith("-") and rest[0] not in READ_ONLY_GIT:
            del rest[: 2 if rest[0] in ("-C", "-c") else 1]
        return bool(rest) and rest[0] in READ_ONLY_GIT
    return program in READ_ONLY_PROGRAMS


def _caller() -> str:
    """The top-level module that starts a program."""
    frame = sys._getframe()
    while frame.f_back and (frame.f_globals is globals() or _package_of(frame) in STARTERS):
        frame = frame.f_back
    return _package_of(frame)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
