"""What ``os.scandir`` returns for a folder whose entries are partly in the scratch folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from typing_extensions import Self


class Listing:
    """Iterates over the entries of a folder, as the iterator of ``os.scandir`` does."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class Entry(os.PathLike[Any]):
    """An ``os.DirEntry``, which cannot be constructed. ``look_up`` is ``os.stat``, which knows the scratch folder."""

    def __init__(self, name: str | bytes, path: str | bytes, location: str, look_up: Callable[..., os.stat_result]) -> None:
        self.name, self.path = name, path
        self._location, self._look_up = location, look_up  # absolute: ``path`` may be relative to a descriptor

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._look_up(self._location, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        return False

    def _mode(self, follow_symlinks: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0
