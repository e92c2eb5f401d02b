"""Sources that are compiled in place of a script's own, under the names of these."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

_patched: dict[str, str] = {}
"""The path of each source in use, by the real path of the script's own."""


def use_patched_sources(patched: Mapping[str, str]) -> None:
    """From now on compile the sources of ``patched`` in this process, for the script, its imports and its tracebacks."""
    own_get_code = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        path = loader.get_filename(fullname)
        if patched_path(path) == path:
            return own_get_code(loader, fullname)
        code: CodeType = compile(Path(patched_path(path)).read_bytes(), path, "exec", dont_inherit=True)
        return code

    for source, copy in patched.items():
        text = Path(copy).read_text(encoding="utf-8")
        linecache.cache[source] = (len(text), None, text.splitlines(keepends=True), source)
    _patched.update(patched)
    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def patched_path(path: str) -> str:
    """The source to compile in place of ``path``; itself if that has none."""
    return _patched.get(os.path.realpath(path), path) if _patched else path
