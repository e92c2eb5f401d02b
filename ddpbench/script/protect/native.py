"""Functions that open files in C++ or Rust, where ``open`` is not called: their paths are replaced before."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

from ddpbench.script.after_import import call_after_import
from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.redirect import open_flags, read_path

WRITE = open_flags("w")
UPDATE = os.O_RDWR | os.O_CREAT


def reads(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return os.O_RDONLY


def writes(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return WRITE


def _maps_storage(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    """``from_file(filename, shared=False, size=0)`` writes what is shared."""
    return UPDATE if options.get("shared", arguments[1:2] == (True,)) else os.O_RDONLY


def _opens_hdf5(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    """``File(name, mode="r")``; ``a`` is for update, ``w-`` for a new file."""
    mode = options.get("mode") or (arguments[2:3] or ("r",))[0]
    return UPDATE if mode == "a" else open_flags(str(mode).replace("w-", "x"))


@dataclass(frozen=True)
class NativeFunction:
    """A function, with its place after the import of ``module``, the place of its path, and how it opens that, as flags of ``os.open``."""

    module: str
    name: str
    position: int
    keyword: str
    flags: Callable[[Sequence[Any], Mapping[str, Any]], int | None]


NATIVE_FUNCTIONS = [
    NativeFunction("torch", "_C.PyTorchFileWriter", 0, "file_name", writes),  # torch.save with a path
    NativeFunction("torch", "UntypedStorage.from_file", 0, "filename", _maps_storage),  # torch.load(mmap=True)
    NativeFunction("torch", "from_file", 0, "filename", _maps_storage),
    NativeFunction("torch", "jit.RecursiveScriptModule.save", 1, "f", writes),
    NativeFunction("torch", "_C.import_ir_module", 1, "filename", reads),
    NativeFunction("torchvision.io.image", "write_file", 0, "filename", writes),
    NativeFunction("torchvision.io.image", "read_file", 0, "path", reads),
    NativeFunction("torch.autograd.profiler", "profile.export_chrome_trace", 1, "path", writes),
    NativeFunction("safetensors", "serialize_file", 1, "filename", writes),
    NativeFunction("safetensors", "safe_open", 0, "filename", reads),
    NativeFunction("tokenizers", "Tokenizer.save", 1, "path", writes),
    NativeFunction("tokenizers", "Tokenizer.from_file", 0, "path", reads),
    NativeFunction("h5py", "File.__init__", 1, "name", _opens_hdf5),
    NativeFunction("cv2", "imwrite", 0, "filename", writes),
    NativeFunction("cv2", "imread", 0, "filename", reads),
]


def redirect_native_functions(changes: Changes, is_own: Callable[[], bool]) -> None:
    """Replace each function as soon as its module has been imported."""
    for each in NATIVE_FUNCTIONS:
        call_after_import(each.module, functools.partial(_replace, each, changes, is_own))
    call_after_import("lmdb", _open_lmdb_without_lock)


def _replace(native: NativeFunction, changes: Changes, is_own: Callable[[], bool]) -> None:
    *parents, name = native.name.split(".")
    try:
        owner: Any = functools.reduce(getattr, parents, sys.modules[native.module])
        original = getattr(owner, name)
    except AttributeError:
        return  # another version of the module

    @functools.wraps(original)
    def redirected(*arguments: Any, **options: Any) -> Any:
        flags = native.flags(arguments, options)
        by_name = native.keyword in options
        path = options.get(native.keyword, (arguments[native.position :][:1] or (None,))[0])
        text = read_path(path)
        if is_own() or text is None or flags is None:
            return original(*arguments, **options)
        place = changes.opened(text, flags)
        if by_name:
            return original(*arguments, **{**options, native.keyword: place})
        return original(*arguments[: native.position], place, *arguments[native.position + 1 :], **options)

    is_static = isinstance(owner, type) and isinstance(original, BuiltinFunctionType)  # of a class in C++ or Rust
    setattr(owner, name, staticmethod(redirected) if is_static else redirected)


def _open_lmdb_without_lock() -> None:
    """Even a reader writes the lock file of an LMDB dataset, by default."""
    lmdb: Any = sys.modules["lmdb"]
    open_environment = lmdb.open

    @functools.wraps(open_environment)
    def open_without_lock(*arguments: Any, **options: Any) -> Any:
        return open_environment(*arguments, **({**options, "lock": False} if options.get("readonly") else options))

    lmdb.open = open_without_lock
