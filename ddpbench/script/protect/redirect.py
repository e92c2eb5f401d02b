"""The functions of ``os`` and ``io`` that take paths, replaced by ones that know the scratch folder.

``shutil``, ``pathlib``, ``glob``, ``tempfile``, ``os.makedirs``, ``os.walk`` and ``os.path`` are written in Python on top of these.
"""

from __future__ import annotations

import _io
import fcntl
import functools
import importlib
import mmap
import os
import posix
from collections.abc import Callable
from typing import Any

from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.listing import Entry, Listing
from ddpbench.script.protect.overlay import Overlay, path_of_descriptor
from ddpbench.script.protect.replace import replace_everywhere
from ddpbench.script.protect.update_maps import update_map_class
from ddpbench.script.protect.updates import buffered

Function = Callable[..., Any]


def read_path(path: Any, dir_fd: int | None = None) -> str | None:
    """``path`` as text, absolute if it is relative to ``dir_fd``; None for a descriptor, and for what is no path."""
    if isinstance(path, int):
        return None
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    if not text or "\0" in text:
        return None  # an error of the system function
    return text if dir_fd is None or text.startswith("/") else f"{path_of_descriptor(dir_fd)}/{text}"


@functools.cache
def open_flags(mode: str) -> int:
    """The flags with which ``open`` opens a file."""
    flags = os.O_RDWR if "+" in mode else os.O_RDONLY
    for letter, more in {"w": os.O_TRUNC, "x": os.O_EXCL, "a": os.O_APPEND}.items():
        if letter in mode:
            flags |= os.O_WRONLY | os.O_CREAT | more
    return flags


def find_function(module: str, name: str) -> Any:
    """The function, in a process that may not be protected."""
    return getattr(importlib.import_module(module), name)


class Replacement:
    """A function in place of ``original``. It is no Python function, which would become a method of a class that holds it."""

    def __init__(self, module: str, original: Function, redirected: Function, is_own: Callable[[], bool]) -> None:
        functools.update_wrapper(self, original)
        self._module, self._original, self._redirected, self._is_own = module, original, redirected, is_own

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return (self._original if self._is_own() else self._redirected)(*arguments, **options)

    def __reduce__(self) -> tuple[Function, tuple[str, str]]:
        return find_function, (self._module, self._original.__name__)


class Redirect:
    """The replaced functions of one overlay. ``is_own`` is true while ddpbench itself writes."""

    def __init__(self, overlay: Overlay, changes: Changes, is_own: Callable[[], bool]) -> None:
        self._overlay, self._changes = overlay, changes
        functions: dict[Function, Function] = {
            **{each: self._reading(each) for each in (posix.stat, posix.statvfs, posix.chdir)},
            **{each: self._reading(each) for each in (posix.listxattr, posix.getxattr)},
            **{each: self._reading(each, follow=False) for each in (posix.lstat, posix.readlink)},
            **{each: self._describing(each) for each in (posix.chmod, posix.chown, posix.utime)},
            **{each: self._describing(each) for each in (posix.setxattr, posix.removexattr)},
            posix.lchown: self._describing(posix.lchown, follow=False),
            **{each: self._creating(each) for each in (posix.mkfifo, posix.mknod)},
            posix.access: self._accessing(self._reading(posix.access)),
            posix.truncate: self._changing(posix.truncate, lambda path, length: posix.truncate(changes.opened(path, os.O_WRONLY), length)),
            **{each: self._changing(each, changes.remove) for each in (posix.remove, posix.unlink)},
            posix.rmdir: self._changing(posix.rmdir, changes.rmdir),
            posix.mkdir: self._changing(posix.mkdir, lambda path, mode=0o777: changes.mkdir(path, mode)),
            posix.rename: self._renaming(changes.rename),
            posix.replace: self._renaming(changes.rename),
            posix.link: self._renaming(changes.link),
            posix.symlink: self.symlink,
            posix.getcwd: overlay.getcwd,
            posix.getcwdb: lambda: os.fsencode(overlay.getcwd()),
            posix.listdir: self.listdir,
            posix.scandir: self.scandir,
            posix.open: self._opening(posix.open),
            **{each: self._writing(each) for each in (posix.write, posix.pwrite, posix.writev, posix.pwritev, posix.sendfile)},
            **{each: self._writing(each) for each in (posix.ftruncate, posix.posix_fallocate, posix.fchmod, posix.fchown)},
            fcntl.lockf: self._writing(fcntl.lockf),
        }
        self.replacements: dict[Any, Any] = {
            **{original: Replacement(_module_of(original), original, redirected, is_own) for original, redirected in functions.items()},
            _io.open: Replacement("io", _io.open, self.open, is_own),
            _io.FileIO: self._file_io(is_own),
            mmap.mmap: update_map_class(changes.updates, changes.copied, is_own),
        }
        """The new function or class, by the one that it replaces."""

    def install(self) -> None:
        """Replace the functions in all modules, and in the sets of ``os`` that list what they support."""
        replace_everywhere(self.replacements)
        for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            supporting.update(self.replacements[each] for each in supporting & self.replacements.keys())

    # open

    def open(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        text = read_path(file)
        if text is None or not isinstance(mode, str):
            return _io.open(file, mode, *arguments, **options)
        with _named(file):
            if options.get("opener") is None and len(arguments) < 6 and (raw := self._changes.open_for_update(text, mode, file)):
                return buffered(raw, mode, *arguments, **options)
            path = self._changes.opened(text, open_flags(mode))
            if path == text:
                return _io.open(file, mode, *arguments, **options)
            opened: Any = _io.open(path, mode, *arguments, **options)
        buffer = getattr(opened, "buffer", opened)
        getattr(buffer, "raw", buffer).name = file
        return opened

    def _opening(self, system_open: Callable[..., int]) -> Function:
        def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            text = read_path(path, dir_fd)
            if text is None:
                return system_open(path, flags, mode, dir_fd=dir_fd)
            with _named(path):
                return system_open(self._changes.opened(text, flags), flags, mode)

        return open_descriptor

    def _writing(self, function: Function) -> Function:
        """A function that may write to its first argument, which is a descriptor or a file."""
        updates = self._changes.updates

        def write(*arguments: Any, **options: Any) -> Any:
            if updates and arguments:
                updates.begin_writing(arguments[0])
            return function(*arguments, **options)

        return write

    def _file_io(self, is_own: Callable[[], bool]) -> type:
        changes = self._changes

        class AnyFileIO(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, _io.FileIO)  # those of ``open``, too

        class FileIO(_io.FileIO, metaclass=AnyFileIO):  # type: ignore[metaclass]  # that of _io.FileIO is type
            def __init__(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> None:
                text = None if is_own() else read_path(file)
                with _named(file):
                    super().__init__(file if text is None else changes.opened(text, open_flags(mode)), mode, *arguments, **options)
                self.name = file

        return FileIO

    # reading

    def _reading(self, function: Function, follow: bool = True) -> Function:
        source = self._overlay.source

        def read(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            text = read_path(path, dir_fd)
            if text is None:
                return function(path, *arguments, **options, **_given(dir_fd))
            with _named(path):
                return function(_like(path, source(text, follow and options.get("follow_symlinks", True))), *arguments, **options)

        return read

    def _accessing(self, access: Callable[..., bool]) -> Function:
        def is_accessible(*arguments: Any, **options: Any) -> bool:
            try:
                return access(*arguments, **options)
            except OSError:  # it was deleted, or is a loop of symlinks
                return False

        return is_accessible

    def listdir(self, path: Any = None) -> list[Any]:
        text = _folder_path(path)
        with _named(path):
            names = self._overlay.merged_names(text) if text else None
            return posix.listdir(path) if names is None else [_like(path, name) for name in names]

    def scandir(self, path: Any = None) -> Any:
        text = _folder_path(path)
        with _named(path):
            names = self._overlay.merged_names(text) if text else None
        if text is None or names is None:
            return posix.scandir(path)
        location, shown = os.path.join(self._overlay.getcwd(), text), "" if isinstance(path, int) else text
        look_up = self.replacements[posix.stat]
        return Listing([Entry(_like(path, name), _like(path, os.path.join(shown, name)), f"{location}/{name}", look_up) for name in names])

    # changing

    def _changing(self, function: Function, change: Function) -> Function:
        def act(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            text = read_path(path, dir_fd)
            if text is None:
                self._changes.updates.begin_writing(path)
                return function(path, *arguments, **options, **_given(dir_fd))
            with _named(path):
                return change(text, *arguments, **options)

        return act

    def _describing(self, function: Function, follow: bool = True) -> Function:
        def describe(path: str, *arguments: Any, **options: Any) -> Any:
            place = self._changes.described(path, follow and options.get("follow_symlinks", True))
            return None if place is None else function(place, *arguments, **options)

        return self._changing(function, describe)

    def _creating(self, function: Function) -> Function:
        return self._changing(function, lambda path, *arguments: function(self._changes.created(path), *arguments))

    def _renaming(self, change: Callable[[str, str], None]) -> Function:
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **options: Any) -> None:
            old, new = read_path(src, src_dir_fd), read_path(dst, dst_dir_fd)
            with _named(src, dst):
                change(old or os.fspath(src), new or os.fspath(dst))

        return rename

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        with _named(src, dst):
            self._changes.symlink(os.fsdecode(src), read_path(dst, dir_fd) or os.fspath(dst))


def _module_of(function: Function) -> str:
    return "os" if function.__module__ == "posix" else function.__module__


class _named:
    """Names a file in errors as the script named it, whatever its scratch copy is called."""

    __slots__ = ("_paths",)

    def __init__(self, *paths: Any) -> None:
        self._paths = paths

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, traceback: object) -> None:
        if isinstance(problem, OSError) and problem.filename is not None and self._paths[0] is not None:
            problem.filename, *rest = (os.fspath(path) if isinstance(path, os.PathLike) else path for path in self._paths)
            if rest:
                problem.filename2 = rest[0]


def _folder_path(path: Any) -> str | None:
    if isinstance(path, int):
        return path_of_descriptor(path)
    return "." if path is None else read_path(path)


def _like(path: Any, text: str) -> str | bytes:
    """``text`` as bytes if ``path`` is."""
    return os.fsencode(text) if isinstance(path, bytes) else text


def _given(dir_fd: int | None) -> dict[str, int]:
    """As an argument only if there is one: not every function has it."""
    return {} if dir_fd is None else {"dir_fd": dir_fd}
