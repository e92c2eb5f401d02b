"""Sources that are compiled in place of a script's own, under the names of these."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import msgspec

from ddpbench.machine.variables import EnvVar

_patched: dict[str, str] = {}
"""The path of each source in use, by the real path of the script's own."""

_compiled: set[str] = set()
"""Those of them that were compiled."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch of ``ab`` does besides watching."""

    patched: dict[str, str] = {}  # paths of sources to compile, by those of the script's own
    compute_only: bool = False  # the script gets its first batches again and again


def side_of_environment() -> Side | None:
    """What ``ab`` wants of this process, if it has started it."""
    text = os.environ.get(EnvVar.DDPBENCH_AB)
    return msgspec.json.decode(text, type=Side) if text else None


def has_compiled_patched_source() -> bool:
    """Whether one of the patched sources is in use in this process."""
    return bool(_compiled)


def use_patched_sources(sources: Mapping[str, str]) -> None:
    """From now on compile the values of ``sources`` in place of its keys, for the script, its imports and its tracebacks."""
    own_get_code = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        path = loader.get_filename(fullname)
        patched = patched_path(path)
        if patched == path:
            return own_get_code(loader, fullname)
        code: CodeType = compile(Path(patched).read_bytes(), path, "exec", dont_inherit=True)
        return code

    for source, copy in sources.items():
        text = Path(copy).read_text(encoding="utf-8")
        linecache.cache[source] = (len(text), None, text.splitlines(keepends=True), source)
    _patched.update(sources)
    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def patched_path(path: str) -> str:
    """The source to compile in place of ``path``, which is compiled now; itself if that has none."""
    found = _patched.get(os.path.realpath(path)) if _patched else None
    if found is None:
        return path
    _compiled.add(found)
    return found
