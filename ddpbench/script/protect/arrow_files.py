"""``pyarrow.fs.LocalFileSystem``, which opens, creates and removes files in C++: its methods, in Python."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from ddpbench.script.after_import import call_after_import
from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.redirect import open_flags

OPENING = {
    "open_input_file": open_flags("r"),
    "open_input_stream": open_flags("r"),
    "open_output_stream": open_flags("w"),
    "open_append_stream": open_flags("a"),
}
"""The methods that open a file, as their first argument, with the flags of ``os.open``."""


def redirect_arrow_files(changes: Changes, is_own: Callable[[], bool]) -> None:
    """Replace the class once ``pyarrow.fs`` is imported."""
    call_after_import("pyarrow.fs", lambda: _replace_file_system(changes, is_own))


def _replace_file_system(changes: Changes, is_own: Callable[[], bool]) -> None:
    arrow: Any = sys.modules["pyarrow.fs"]
    system_class = arrow.LocalFileSystem

    class AnyFileSystem(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, system_class)

    class LocalFileSystem(system_class, metaclass=AnyFileSystem):  # type: ignore[misc,valid-type]
        def create_dir(self, path: str, *, recursive: bool = True) -> None:
            if recursive:
                os.makedirs(path, exist_ok=True)
            else:
                os.mkdir(path)

        def delete_file(self, path: str) -> None:
            os.remove(path)

        def delete_dir(self, path: str) -> None:
            shutil.rmtree(path)

        def move(self, src: str, dest: str) -> None:
            os.rename(src, dest)

        def copy_file(self, src: str, dest: str) -> None:
            shutil.copyfile(src, dest)

    def opening(name: str, flags: int) -> Callable[..., Any]:
        original = getattr(system_class, name)

        @functools.wraps(original)
        def open_in_place(self: Any, path: Any, *arguments: Any, **options: Any) -> Any:
            place = path if is_own() else changes.opened(os.fspath(path), flags)
            return original(self, place, *arguments, **options)

        return open_in_place

    for name, flags in OPENING.items():
        setattr(LocalFileSystem, name, opening(name, flags))
    arrow.LocalFileSystem = LocalFileSystem
