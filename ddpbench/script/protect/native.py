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
from ddpbench.script.protect.changes import WRITE_FLAGS, Changes
from ddpbench.script.protect.redirect import open_flags, read_path

WRITE = open_flags("w")
UPDATE = os.O_RDWR | os.O_CREAT
BASE_TYPE = 1 << 10
"""Py_TPFLAGS_BASETYPE: the flag of a class that may have subclasses."""

FOLDER = os.O_DIRECTORY | os.O_CREAT
"""A folder in which files are created."""


def reads(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return os.O_RDONLY


def writes(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return WRITE


def updates(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return UPDATE


def fills(arguments: Sequence[Any], options: Mapping[str, Any]) -> int | None:
    """``write_dataset`` and similar functions, whose path is that of a folder."""
    return None if _is_remote(options.get("filesystem")) else FOLDER


def by_mode(index: int, default: str = "r") -> Callable[[Sequence[Any], Mapping[str, Any]], int]:
    """The flags of functions with a ``mode`` at ``index``, as that of ``open``."""

    def flags(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
        return open_flags(options.get("mode") or (*arguments[index : index + 1], default)[0] or default)

    return flags


def with_filesystem(index: int, flags: int) -> Callable[[Sequence[Any], Mapping[str, Any]], int | None]:
    """``flags`` for functions of pyarrow with a ``filesystem`` at ``index``, unless that is a remote one."""
    return lambda arguments, options: None if _is_remote((*arguments[index : index + 1], options.get("filesystem"))[0]) else flags


def _is_remote(filesystem: Any) -> bool:
    """Whether it is something else than None or a ``LocalFileSystem`` of pyarrow or fsspec."""
    return filesystem is not None and "LocalFileSystem" not in {each.__name__ for each in type(filesystem).__mro__}


def _maps_storage(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    """``from_file(filename, shared=False, size=0)`` writes what is shared."""
    return UPDATE if options.get("shared", arguments[1:2] == (True,)) else os.O_RDONLY


def _opens_hdf5(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    """``File(name, mode="r")``; ``a`` is for update, ``w-`` for a new file."""
    mode = options.get("mode") or (arguments[2:3] or ("r",))[0]
    return UPDATE if mode == "a" else open_flags(str(mode).replace("w-", "x"))


@dataclass(frozen=True)
class NativeFunction:
    """A function or class, its place after the import of ``module``, the place of its path, and how it opens that, as for ``os.open``.

    In place of a path there may be a list of paths.
    """

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
    NativeFunction("torch.distributed.rendezvous", "FileStore", 0, "file_name", updates),  # init_method="file:///..."
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
    NativeFunction("cv2", "VideoCapture", 0, "filename", reads),
    NativeFunction("cv2", "VideoWriter", 0, "filename", writes),
    NativeFunction("soundfile", "SoundFile.__init__", 1, "file", by_mode(2)),
    NativeFunction("pyarrow", "memory_map", 0, "path", by_mode(1)),
    NativeFunction("pyarrow", "create_memory_map", 0, "path", writes),
    NativeFunction("pyarrow", "OSFile", 0, "path", by_mode(1)),
    NativeFunction("pyarrow.ipc", "RecordBatchFileReader.__init__", 1, "source", reads),
    NativeFunction("pyarrow.ipc", "RecordBatchStreamReader.__init__", 1, "source", reads),
    NativeFunction("pyarrow.ipc", "RecordBatchFileWriter.__init__", 1, "sink", writes),
    NativeFunction("pyarrow.ipc", "RecordBatchStreamWriter.__init__", 1, "sink", writes),
    NativeFunction("pyarrow.parquet.core", "ParquetFile.__init__", 1, "source", with_filesystem(99, os.O_RDONLY)),
    NativeFunction("pyarrow.parquet.core", "ParquetDataset.__init__", 1, "path_or_paths", with_filesystem(2, os.O_RDONLY)),
    NativeFunction("pyarrow.parquet.core", "ParquetWriter.__init__", 1, "where", with_filesystem(3, WRITE)),
    NativeFunction("pyarrow.dataset", "dataset", 0, "source", with_filesystem(3, os.O_RDONLY)),
    NativeFunction("pyarrow.dataset", "write_dataset", 1, "base_dir", fills),
    NativeFunction("pyarrow.feather", "read_table", 0, "source", reads),
    NativeFunction("pyarrow.feather", "write_feather", 1, "dest", writes),
    NativeFunction("pyarrow.csv", "read_csv", 0, "input_file", reads),
    NativeFunction("pyarrow.csv", "open_csv", 0, "input_file", reads),
    NativeFunction("pyarrow.csv", "write_csv", 1, "output_file", writes),
    NativeFunction("pyarrow.json", "read_json", 0, "input_file", reads),
]


def redirect_native_functions(changes: Changes, is_own: Callable[[], bool]) -> None:
    """Replace each function as soon as its module has been imported."""
    for each in NATIVE_FUNCTIONS:
        call_after_import(each.module, functools.partial(_replace, each, changes, is_own))


def _replace(native: NativeFunction, changes: Changes, is_own: Callable[[], bool]) -> None:
    *parents, name = native.name.split(".")
    try:
        owner: Any = functools.reduce(getattr, parents, sys.modules[native.module])
        original = getattr(owner, name)
    except AttributeError:
        return  # another version of the module

    def redirect(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with the place of each path."""
        flags = native.flags(arguments, options)
        path = options.get(native.keyword, (*arguments[native.position :][:1], None)[0])
        if is_own() or flags is None or not _are_paths(path):
            return arguments, options
        place = [_place(changes, each, flags) for each in path] if isinstance(path, list | tuple) else _place(changes, path, flags)
        if native.keyword in options:
            return arguments, {**options, native.keyword: place}
        return (*arguments[: native.position], place, *arguments[native.position + 1 :]), options

    if isinstance(original, type):
        setattr(owner, name, _redirected_class(original, redirect))
        return

    @functools.wraps(original)
    def redirected(*arguments: Any, **options: Any) -> Any:
        arguments, options = redirect(arguments, options)
        return original(*arguments, **options)

    is_static = isinstance(owner, type) and isinstance(original, BuiltinFunctionType)  # of a class in C++ or Rust
    setattr(owner, name, staticmethod(redirected) if is_static else redirected)


def _redirected_class(original: Any, redirect: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> type:
    """A class whose objects are those of ``original``, as are all of these its own."""
    meta: Any = type(original)
    bases = (original,) if original.__flags__ & BASE_TYPE else ()

    class AnyInstance(meta):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, original) if cls is Redirected else meta.__instancecheck__(cls, value)

        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            arguments, options = redirect(arguments, options)
            return original(*arguments, **options) if cls is Redirected else super().__call__(*arguments, **options)

    names = {"__qualname__": original.__qualname__, "__module__": original.__module__}
    Redirected: Any = AnyInstance(original.__name__, bases, names)
    return Redirected  # type: ignore[no-any-return]


def _are_paths(value: Any) -> bool:
    """Whether it is a path, or a list of paths, of this machine."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_are_paths, value))
    text = read_path(value)
    return text is not None and "://" not in text


def _place(changes: Changes, path: Any, flags: int) -> str:
    text = os.fsdecode(path)
    if flags == FOLDER:
        return changes.folder(text)
    return changes.opened(text, flags) if flags & WRITE_FLAGS else changes.merged(text)
