"""The user's files as the script sees them: unchanged files where they always were, changed ones in a scratch folder.

The scratch folder repeats the paths of what was written; a symlink to ``DELETED`` stands for what was deleted. All state is in the file
system, so that the ranks of a node, forked workers and spawned workers share it. Calls go to ``posix``, whose functions are never replaced.
"""

from __future__ import annotations

import errno
import mmap
import os
import posix
import stat
import time
from collections.abc import Iterable

DELETED = "/dev/null/deleted"
"""Target of the symlink at a deleted path. A look-up below it fails with ENOTDIR."""

KERNEL_FOLDERS = ("/dev/", "/proc/", "/sys/")
"""They hold no file of a user, and links such as ``/proc/self/fd/1`` that must not be followed by name."""

MEMORY_FOLDER = "/dev/shm/"
"""It does: datasets and checkpoints may be there."""

MAX_SYMLINKS = 40


class Overlay:
    """Finds the content of a path. A *key* is an absolute path without symlinks, except perhaps its last part."""

    def __init__(self, scratch: str, writable: Iterable[str] = ()) -> None:
        """``scratch`` is the scratch folder, ``writable`` are folders that the script may write; both without symlinks."""
        self.scratch, self.root, self.temp = scratch, f"{scratch}/files", f"{scratch}/tmp"
        self._free = tuple(f"{folder}/" for folder in (scratch, *writable))
        self._generation = _share_number(f"{scratch}/generation")
        self._known_generation = 0
        self._folders: dict[str, tuple[str, bool, bool]] = {}

    def is_free(self, key: str) -> bool:
        """Whether the script may really write ``key``."""
        return key.startswith(self._free) or (key.startswith(KERNEL_FOLDERS) and not key.startswith(MEMORY_FOLDER))

    def getcwd(self) -> str:
        """The working folder, as the script knows it also if it exists in the scratch folder only."""
        return self.without_root(posix.getcwd())

    def without_root(self, path: str) -> str:
        """The user's path of a path in the scratch folder; any other path unchanged."""
        return path[len(self.root) :] or "/" if path == self.root or path.startswith(f"{self.root}/") else path

    # paths

    def locate(self, path: str, follow: bool = True) -> tuple[str, str | None, bool]:
        """The key of ``path``, its place as in ``place``, and whether ``path`` leads to that key without the scratch folder, too.

        With ``follow``, a symlink at the end is followed. Raises OSError if there are too many.
        """
        given, direct = path, True
        for _ in range(MAX_SYMLINKS):
            folder, slash, name = path.rpartition("/")
            if name in ("", ".", ".."):
                key, found, _ = self._find_folder(path)
                key = key or "/"
                place: str | None = self.place(key)
            else:
                key, found, untouched = self._find_folder(folder if folder or not slash else "/")
                key = f"{key}/{name}"
                place = key if untouched else self.place(key)
            target = _link_target(key, place) if follow else None
            direct = direct and found and (target is None or place == key)
            if target is None:
                return key, place, direct
            path = os.path.join(key.rpartition("/")[0] or "/", target)
        raise system_error(errno.ELOOP, given)

    def place(self, key: str) -> str | None:
        """Where the content of ``key`` is, if it exists: ``key`` itself, or a scratch path. None if it was deleted."""
        if self.is_free(key):
            return key
        upper = self.root + key
        try:
            mode = posix.lstat(upper).st_mode
        except FileNotFoundError:
            return key
        except NotADirectoryError:
            return None
        if stat.S_ISDIR(mode):
            return key if is_folder(key) else upper  # a folder of the user has changed parts, and stays where it is
        return None if stat.S_ISLNK(mode) and posix.readlink(upper) == DELETED else upper

    def existing(self, path: str, follow: bool = True) -> tuple[str, str, int]:
        """Key, place and mode of ``path``. Raises FileNotFoundError if it does not exist."""
        key, place, _ = self.locate(path, follow)
        mode = mode_of(place) if place else 0
        if place is None or not mode:
            raise system_error(errno.ENOENT, path)
        return key, place, mode

    def note_change(self) -> None:
        """Let all processes find folders again: one is new in the scratch folder, or a symlink may have changed."""
        self._generation[0] = time.monotonic_ns() ^ posix.getpid()

    def _find_folder(self, path: str) -> tuple[str, bool, bool]:
        """The key of a folder, empty for ``/``; whether ``path`` leads to it without the scratch folder; whether nothing in it changed."""
        generation = self._generation[0]
        if self._known_generation != generation or len(self._folders) > 10_000:
            self._known_generation = generation
            self._folders.clear()
        if not path.startswith("/"):
            path = f"{posix.getcwd()}/{path}"
        known = self._folders.get(path)
        if known is None:
            key, direct = self._resolve(path)
            known = key, direct, self.is_free(f"{key}/") or not self._has_scratch(key)
            if generation == self._known_generation == self._generation[0]:  # no other thread has changed anything meanwhile
                self._folders[path] = known
        return known

    def _has_scratch(self, key: str) -> bool:
        """Whether the scratch folder has anything at ``key``, or at a folder above it something else than a folder."""
        try:
            posix.lstat(self.root + key)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            pass
        return True

    def _resolve(self, path: str) -> tuple[str, bool]:
        rest, key, links = self.without_root(path), "", 0
        direct = rest == path
        parts = rest.split("/")[::-1]
        while parts:
            name = parts.pop()
            if name == "..":
                key = key.rpartition("/")[0]
            elif name not in ("", "."):
                key = f"{key}/{name}"
                place = self.place(key)
                if (target := _link_target(key, place)) is not None:
                    if (links := links + 1) > MAX_SYMLINKS:
                        raise system_error(errno.ELOOP, path)
                    direct = direct and place == key
                    key = "" if target.startswith("/") else key.rpartition("/")[0]
                    parts += target.split("/")[::-1]
        return key, direct

    # reading

    @property
    def has_changes(self) -> bool:
        """Whether the script has changed anything so far."""
        return bool(self._generation[0])

    def source(self, path: str, follow: bool = True) -> str:
        """The path to read in place of ``path``: ``path`` itself if it is unchanged. Raises FileNotFoundError if it was deleted."""
        if not self.has_changes:
            return path
        key, place, direct = self.locate(path, follow)
        if place is None:
            raise system_error(errno.ENOENT, path)
        return path if direct and place == key else place

    def merged_names(self, path: str) -> list[str] | None:
        """The names in a folder; None if no part of it has changed, so that the system lists it under ``path`` itself."""
        key, place, direct = self.locate(path)
        if place is None:
            raise system_error(errno.ENOENT, path)
        unchanged = place == key and (self.is_free(key) or not is_folder(self.root + key))
        return None if direct and unchanged else self.names(key, place)

    def names(self, key: str, place: str) -> list[str]:
        """The names in the folder ``key``. Raises NotADirectoryError."""
        names = dict.fromkeys(posix.listdir(key) if place == key else ())
        upper = self.root + key
        if place == upper or (is_folder(upper) and not self.is_free(key)):
            for name in posix.listdir(upper):
                if is_deleted(f"{upper}/{name}"):
                    names.pop(name, None)
                else:
                    names[name] = None
        return list(names)

    def changed(self) -> list[str]:
        """All files that the script wrote, renamed or deleted, sorted."""
        found: list[str] = []
        folders = [self.root] if is_folder(self.root) else []
        for folder in folders:
            for entry in posix.scandir(folder):
                key = self.without_root(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not is_deleted(entry.path) or mode_of(key):
                    found.append(key)
        return sorted(found)


def path_of_descriptor(descriptor: int) -> str:
    """The path that was opened, or a name such as ``pipe:[27]``."""
    return posix.readlink(f"/proc/self/fd/{descriptor}")


def system_error(number: int, path: str) -> OSError:
    """The OSError that the system raises for ``number``."""
    return OSError(number, os.strerror(number), path)


def mode_of(path: str) -> int:
    """The mode of what is really at ``path``, a symlink for itself; 0 if there is nothing."""
    try:
        return posix.lstat(path).st_mode
    except OSError:
        return 0


def is_folder(path: str) -> bool:
    """Whether ``path`` really is a folder, and no symlink to one."""
    return stat.S_ISDIR(mode_of(path))


def is_deleted(path: str) -> bool:
    """Whether the scratch path stands for a deleted file."""
    return _link_target("", path) == DELETED


def _share_number(path: str) -> memoryview:
    """A number in a file, which processes share. It is 0 at first."""
    descriptor = posix.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        posix.ftruncate(descriptor, 8)
        return memoryview(mmap.mmap(descriptor, 8)).cast("Q")
    finally:
        posix.close(descriptor)


def _link_target(key: str, place: str | None) -> str | None:
    if place is None or key.startswith(KERNEL_FOLDERS):
        return None
    try:
        return posix.readlink(place)
    except OSError:
        return None
