"""Changes of files, made in the scratch folder. Each does what the system call of the same name would do, with the same errors."""

from __future__ import annotations

import errno
import os
import posix
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress

from ddpbench.script.protect.copies import copy_content, copy_file_content, copy_metadata, require_room
from ddpbench.script.protect.overlay import DELETED, Overlay, is_deleted, is_folder, mode_of, path_of_descriptor, system_error
from ddpbench.script.protect.updates import UpdatedFile, Updates, can_wait

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""The flags of ``os.open`` that write."""


class Changes:
    """Writes, creates, renames and deletes in the scratch folder of an overlay."""

    def __init__(self, overlay: Overlay, on_copy: Callable[[str, int], None] = lambda path, size: None) -> None:
        """``on_copy`` is called with the path and the size of each file that was copied with its content."""
        self._overlay, self._on_copy = overlay, on_copy
        self.updates = Updates()

    # files

    def opened(self, path: str, flags: int) -> str:
        """The path to open in place of ``path``. For writing it is in the scratch folder, with a copy of the file if there is one."""
        overlay = self._overlay
        if self.updates:
            self.write_back(path)
        if not flags & WRITE_FLAGS:
            return overlay.source(path)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            return overlay.temp
        if flags & os.O_CREAT and flags & os.O_EXCL:
            return self.created(path)
        key, place, _ = overlay.locate(path)
        if overlay.is_free(key):
            return key
        if mode := mode_of(place) if place else 0:
            if place == key and not stat.S_ISREG(mode):
                return key  # a folder, which cannot be opened for writing; a pipe
            return self._copy_file(key, keep=not flags & os.O_TRUNC) if place == key else overlay.root + key
        if not flags & os.O_CREAT:
            raise system_error(errno.ENOENT, path)
        return self._make_room(key, path)

    def open_for_update(self, path: str, mode: str, name: object) -> UpdatedFile | None:
        """The file, which is copied at its first write; None if it is small, or not the user's, or not to be updated."""
        if "w" in mode or "x" in mode or not ("a" in mode or "+" in mode):
            return None
        if self.updates:
            self.write_back(path)
        key = self.unwritten(path)
        return UpdatedFile(key, mode, self.updates, self.copied, self._copy_nameless, name) if key else None

    def unwritten(self, path: str) -> str | None:
        """The key of ``path`` if it is a file of the user that need not be copied before it is written."""
        key, place, _ = self._overlay.locate(path)
        return key if place == key and not self._overlay.is_free(key) and can_wait(key) else None

    def copied(self, key: str) -> str | None:
        """The copy of a file of the user that the script has begun to write. None if the path has been deleted."""
        place = self._overlay.place(key)
        if place == key:
            return self._copy_file(key, keep=True) if mode_of(key) else None
        if place is not None:
            self.updates.follow(key, place)  # another process has copied it
        return place

    def write_back(self, path: str | None = None) -> None:
        """Write what memory maps of the file at ``path``, or of any, have changed into its copy, and let them see that of others."""
        keys = self.updates.keys()
        for key in keys if path is None else {self._overlay.locate(path)[0]} & set(keys):
            if self._overlay.place(key) != key or self.updates.has_written(key):
                self.copied(key)

    def created(self, path: str) -> str:
        """The path at which to create what must not exist yet at ``path``."""
        key, place, _ = self._overlay.locate(path, follow=False)
        if place is not None and mode_of(place):
            raise system_error(errno.EEXIST, path)
        return key if self._overlay.is_free(key) else self._make_room(key, path)

    def described(self, path: str, follow: bool = True) -> str | None:
        """The path to change in place of ``path`` in its mode, times and attributes; None for a folder of the user, which keeps its own."""
        key, place, mode = self._overlay.existing(path, follow)
        if place != key or self._overlay.is_free(key):
            return place
        return self._copy_file(key, keep=True) if stat.S_ISREG(mode) else None

    def remove(self, path: str) -> None:
        key, place, mode = self._overlay.existing(path, follow=False)
        if stat.S_ISDIR(mode):
            raise system_error(errno.EISDIR, path)
        if place != key or self._overlay.is_free(key):
            posix.unlink(place)
        self.updates.detach(key)
        self._mark_deleted(key)

    def symlink(self, target: str, path: str) -> None:
        posix.symlink(target, self.created(path))
        self._overlay.note_change()

    def link(self, old: str, new: str) -> None:
        """Link to a copy, since the user's file must not be changed through the new name."""
        key, place, mode = self._overlay.existing(old, follow=False)
        if stat.S_ISDIR(mode):
            raise system_error(errno.EPERM, old)
        posix.link(self._in_scratch(key, place), self.created(new))
        self._overlay.note_change()  # it may be another name of one

    # folders

    def folder(self, path: str) -> str:
        """The folder in which to create files in place of ``path``: of a folder of the user it has the new files only."""
        key, place, _ = self._overlay.locate(path)
        if self._overlay.is_free(key):
            return key
        if place is None or not mode_of(place):
            self.mkdir(key, 0o777)
        upper = self._overlay.root + key
        if _make_folders(upper):
            self._overlay.note_change()
        return upper

    def merged(self, path: str) -> str:
        """The path at which native code reads in place of ``path``; of a folder with changed parts, a copy of it that is made of links."""
        overlay = self._overlay
        source = self.opened(path, os.O_RDONLY)
        if not overlay.has_changes or not _leads_to_folder(source):
            return source
        key, place, _ = overlay.locate(path)
        if place != key or overlay.is_free(key) or not is_folder(overlay.root + key):
            return source
        view = tempfile.mkdtemp(prefix="view-", dir=overlay.temp)
        self._link_parts(key, place, view)
        return view

    def _link_parts(self, key: str, place: str, view: str) -> None:
        for name in self._overlay.names(key, place):
            below = f"{key}/{name}"
            found = self._overlay.place(below) or below
            if found == below and is_folder(below) and is_folder(self._overlay.root + below):
                posix.mkdir(f"{view}/{name}")
                self._link_parts(below, found, f"{view}/{name}")
            else:
                posix.symlink(found, f"{view}/{name}")

    def mkdir(self, path: str, mode: int) -> None:
        upper = self.created(path)
        posix.mkdir(upper, mode)
        self._hide_old_content(upper)
        self._overlay.note_change()

    def rmdir(self, path: str) -> None:
        key, place, mode = self._overlay.existing(path, follow=False)
        if not stat.S_ISDIR(mode):
            raise system_error(errno.ENOTDIR, path)
        if self._overlay.is_free(key):
            posix.rmdir(key)
        else:
            self._remove_empty(key, place, path)
            self._mark_deleted(key)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder, replacing ``new``. Files of the user are copied first."""
        overlay = self._overlay
        key, place, mode = overlay.existing(old, follow=False)
        new_key, new_place, _ = overlay.locate(new, follow=False)
        if key == new_key:
            return
        if new_key.startswith(f"{key}/"):
            raise system_error(errno.EINVAL, old)
        if new_mode := mode_of(new_place) if new_place else 0:
            if stat.S_ISDIR(mode) != stat.S_ISDIR(new_mode):
                raise system_error(errno.EISDIR if stat.S_ISDIR(new_mode) else errno.ENOTDIR, new)
            if new_place and stat.S_ISDIR(mode) and not overlay.is_free(new_key):
                self._remove_empty(new_key, new_place, new)
        upper = new_key if overlay.is_free(new_key) else self._make_room(new_key, new)
        posix.rename(self._in_scratch(key, place), upper)
        self.updates.detach(new_key)
        self._hide_old_content(upper)
        self._mark_deleted(key)

    # the scratch folder

    def _in_scratch(self, key: str, place: str) -> str:
        """The path of ``key`` that may be renamed or linked to: a copy, with all that is in it, of what is the user's."""
        if self._overlay.is_free(key):
            return key
        mode = mode_of(place)
        if stat.S_ISDIR(mode):
            _make_folders(self._with_parents(key))
            for name in self._overlay.names(key, place):
                below = f"{key}/{name}"
                self._in_scratch(below, self._overlay.place(below) or below)
        elif place == key and stat.S_ISLNK(mode):
            posix.symlink(posix.readlink(key), self._with_parents(key))
        elif place == key:
            self._copy_file(key, keep=True)
        return self._overlay.root + key

    def _copy_file(self, key: str, keep: bool) -> str:
        """Copy a file of the user, without its content unless ``keep``. Another process may do the same at the same time."""
        overlay, upper, found = self._overlay, self._with_parents(key), posix.stat(key)
        if keep:
            require_room(overlay.scratch, key, found.st_size)
        copy = f"{overlay.temp}/copy-{posix.getpid()}-{threading.get_ident()}"
        target = posix.open(copy, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if keep:
                copy_file_content(key, target)
        finally:
            posix.close(target)
        copy_metadata(key, copy, found, with_times=keep)
        with suppress(FileExistsError):
            posix.link(copy, upper)
            if keep:
                self._on_copy(key, found.st_size)
        posix.unlink(copy)
        if keep:
            self.updates.follow(key, upper)
        else:
            self.updates.detach(key)
        return upper

    def _copy_nameless(self, descriptor: int) -> int:
        """The descriptor of a copy of a file of the user that was deleted, and is written nevertheless."""
        require_room(self._overlay.scratch, path_of_descriptor(descriptor), posix.fstat(descriptor).st_size)
        copy = posix.open(self._overlay.temp, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        copy_content(descriptor, copy)
        return copy

    def _with_parents(self, key: str) -> str:
        """The scratch path of ``key``, in a folder that exists."""
        upper = self._overlay.root + key
        if _make_folders(upper.rpartition("/")[0]):
            self._overlay.note_change()
        return upper

    def _make_room(self, key: str, path: str) -> str:
        """The scratch path of ``key``, where something new can be created. Raises OSError if its folder does not exist."""
        folder = self._overlay.place(key.rpartition("/")[0] or "/")
        mode = mode_of(folder) if folder else 0
        if not stat.S_ISDIR(mode):
            raise system_error(errno.ENOTDIR if mode else errno.ENOENT, path)
        upper = self._with_parents(key)
        if is_deleted(upper):
            posix.unlink(upper)
        return upper

    def _mark_deleted(self, key: str) -> None:
        """Hide what the user has at ``key``, if anything, now that the scratch folder has nothing there."""
        if not self._overlay.is_free(key) and mode_of(key):
            with suppress(FileExistsError):  # another rank did the same; or the two names of one file were renamed to each other
                posix.symlink(DELETED, self._with_parents(key))
        self._overlay.note_change()

    def _remove_empty(self, key: str, place: str, path: str) -> None:
        """Remove a folder from the scratch folder. Raises OSError if it is not empty."""
        if self._overlay.names(key, place):
            raise system_error(errno.ENOTEMPTY, path)
        upper = self._overlay.root + key
        if is_folder(upper):
            for name in posix.listdir(upper):
                posix.unlink(f"{upper}/{name}")  # they stand for deleted files
            posix.rmdir(upper)

    def _hide_old_content(self, upper: str) -> None:
        """Mark as deleted what the user has in the folder that ``upper``, a new folder, replaces, and in those below it."""
        key = self._overlay.without_root(upper)
        if key != upper and is_folder(upper) and _leads_to_folder(key):
            for name in posix.listdir(key):
                if mode_of(f"{upper}/{name}"):
                    self._hide_old_content(f"{upper}/{name}")
                else:
                    posix.symlink(DELETED, f"{upper}/{name}")


def _make_folders(path: str) -> bool:
    """Create a folder and those above it; False if they all exist already."""
    if is_folder(path):
        return False
    _make_folders(path.rpartition("/")[0])
    with suppress(FileExistsError):
        posix.mkdir(path, 0o777)
    return True


def _leads_to_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(posix.stat(path).st_mode)
    except OSError:
        return False
