"""Files that are open for update but not yet written: they are read where they are, and are copied at the first write."""

from __future__ import annotations

import _io
import fcntl
import os
import posix
import stat
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import WeakSet

SMALL_BYTES = 4096
"""Smaller files are copied when they are opened: lock files, for example, which native code may write through a descriptor."""


NO_TEXT = str.maketrans("", "", "tb")
"""Removes what a raw file has not in its mode."""


class Update(Protocol):
    """Something that reads a file of the user until the script writes it."""

    def follow(self, upper: str) -> None:
        """Go on with ``upper``, the copy of the file in the scratch folder."""

    def detach(self) -> None:
        """The file has lost its name, so that what is written to it is found under none."""

    def has_written(self) -> bool:
        """Whether there is something that a reader of the copy must see."""


class Updates:
    """What this process has open for update and has not written, by the key of the file."""

    def __init__(self) -> None:
        self._by_key: dict[str, WeakSet[Any]] = {}
        self.segments: dict[tuple[int, int], str] = {}
        """The path of each segment of shared memory that is the user's, by device and inode."""

    def add(self, key: str, update: Update) -> None:
        self._by_key.setdefault(key, WeakSet()).add(update)

    def discard(self, key: str, update: Update) -> None:
        if key in self._by_key:
            self._by_key[key].discard(update)

    def follow(self, key: str, upper: str) -> None:
        """The file has a copy now, which every other one that has it open reads, too."""
        for update in list(self._by_key.pop(key, ())):
            update.follow(upper)

    def detach(self, key: str) -> None:
        """The file is removed, or replaced by another."""
        for update in list(self._by_key.pop(key, ())):
            update.detach()

    def keys(self) -> list[str]:
        """The files that are open. Those that are no longer are forgotten."""
        for key in [key for key, updates in list(self._by_key.items()) if not updates]:
            self._by_key.pop(key, None)
        return list(self._by_key)

    def has_written(self, key: str) -> bool:
        """Whether a file was written without a call, through a memory map."""
        return any(update.has_written() for update in list(self._by_key.get(key, ())))

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def begin_writing(self, file: object) -> None:
        """A descriptor, or a file that has one, is about to be written."""
        descriptor = file if isinstance(file, int) else file.fileno() if hasattr(file, "fileno") else -1
        if found := self.file_of(descriptor):
            found.begin_writing()

    def file_of(self, descriptor: int) -> UpdatedFile | None:
        """The file that has the descriptor."""
        updates: Iterable[Any] = [update for updates in list(self._by_key.values()) for update in list(updates)]
        return next((each for each in updates if isinstance(each, UpdatedFile) and each.has_descriptor(descriptor)), None)


class UpdatedFile(_io.FileIO):
    """A file that ``open`` opens for update: it has a descriptor for reading, which becomes one of the copy at the first write.

    Args:
        key: The path of the user's file.
        mode: As for ``open``, without ``w`` and ``x``.
        updates: Of this process.
        copy: Copies the file of a key, unless it was, and returns the path of the copy; None if the file was deleted.
        copy_nameless: Copies the file of a descriptor to one without a name, and returns its descriptor.
    """

    def __init__(
        self, key: str, mode: str, updates: Updates, copy: Callable[[str], str | None], copy_nameless: Callable[[int], int], name: Any
    ) -> None:
        super().__init__(posix.open(key, os.O_RDONLY | os.O_CLOEXEC), mode.translate(NO_TEXT))
        self.name = name
        self.key, self._appends = key, "a" in mode
        self._updates, self._copy, self._copy_nameless = updates, copy, copy_nameless
        self._is_unwritten, self._is_detached = True, False
        updates.add(key, self)

    def write(self, data: Any) -> Any:
        self.begin_writing()
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self.begin_writing()
        return super().truncate(size)

    @property
    def descriptor(self) -> int:
        """The descriptor, to look at the file only."""
        return super().fileno()

    def fileno(self) -> int:
        """The descriptor. One that appends is asked for in order to write, such as by a program that is started."""
        if self._appends:
            self.begin_writing()
        return super().fileno()

    def close(self) -> None:
        if getattr(self, "_is_unwritten", False):
            self._is_unwritten = False
            self._updates.discard(self.key, self)
        super().close()

    def begin_writing(self) -> None:
        """Have a copy from now on."""
        if self._is_unwritten and not self.closed:
            upper = None if self._is_detached else self._copy(self.key)
            if upper is None:
                self._exchange(self._copy_nameless(self.descriptor))
            else:
                self.follow(upper)

    def has_descriptor(self, descriptor: int) -> bool:
        return not self.closed and descriptor == self.descriptor

    # as an Update

    def follow(self, upper: str) -> None:
        if self._is_unwritten and not self.closed:
            self._exchange(posix.open(upper, os.O_RDWR | os.O_CLOEXEC))

    def detach(self) -> None:
        self._is_detached = True

    def has_written(self) -> bool:
        return False

    def _exchange(self, descriptor: int) -> None:
        """Let this file's descriptor be that of the copy, at the same place."""
        self._is_unwritten = False
        self._updates.discard(self.key, self)
        own = self.descriptor
        posix.lseek(descriptor, posix.lseek(own, 0, os.SEEK_CUR), os.SEEK_SET)
        if self._appends:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        posix.dup2(descriptor, own, False)
        posix.close(descriptor)


def buffered(
    raw: UpdatedFile,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: None = None,
) -> Any:
    """What ``open`` returns for a file that it has opened for update."""
    is_binary = "b" in mode
    if is_binary and buffering == 0:
        return raw
    size = buffering if buffering > 1 else max(posix.fstat(raw.descriptor).st_blksize, _io.DEFAULT_BUFFER_SIZE)
    buffer: Any = (_io.BufferedRandom if "+" in mode else _io.BufferedWriter)(raw, size)
    if is_binary:
        return buffer
    text: Any = _io.TextIOWrapper(buffer, encoding, errors, newline, buffering == 1)
    text.mode = mode
    return text


def can_wait(key: str) -> bool:
    """Whether a file of the user, opened for update, may be copied later: it is regular, writable and not small."""
    try:
        status = posix.stat(key)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size >= SMALL_BYTES and posix.access(key, os.W_OK)


def segment_path(descriptor: int, segments: dict[tuple[int, int], str]) -> str:
    """The path of the segment of the user that a descriptor for reading has; empty if it has none."""
    if not segments or descriptor < 0 or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return ""
    return segments.get(identity(descriptor), "")


def identity(descriptor: int) -> tuple[int, int]:
    """Device and inode of an open file."""
    status = posix.fstat(descriptor)
    return status.st_dev, status.st_ino
