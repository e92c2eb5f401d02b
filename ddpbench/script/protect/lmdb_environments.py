"""Environments of LMDB: the user's is opened read-only and without a lock file, and is exchanged for a copy at the first write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ddpbench.script.after_import import call_after_import
from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.redirect import read_path

DATA_FILE = "data.mdb"

ARGUMENTS = ("map_size", "subdir", "readonly")
"""Of an environment, after the path; the others are given by name."""


def redirect_lmdb(changes: Changes, is_own: Callable[[], bool], refuse: Callable[[str, str], NoReturn]) -> None:
    """Replace ``lmdb.open``, ``lmdb.Environment`` and ``lmdb.Transaction`` once the module is imported."""
    call_after_import("lmdb", lambda: _replace_environment(changes, is_own, refuse))


def _replace_environment(changes: Changes, is_own: Callable[[], bool], refuse: Callable[[str, str], NoReturn]) -> None:
    lmdb: Any = sys.modules["lmdb"]
    system_environment, system_transaction = lmdb.Environment, lmdb.Transaction

    class AnyEnvironment(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, system_environment) or type(value) is cls

        def __call__(cls, path: Any, *arguments: Any, **options: Any) -> Any:
            text = read_path(path)
            if text is None or is_own() or len(arguments) > len(ARGUMENTS):
                return system_environment(path, *arguments, **options)
            options = dict(zip(ARGUMENTS, arguments, strict=False)) | options
            has_folder = options.get("subdir", True)
            file = f"{text}/{DATA_FILE}" if has_folder else text
            key = changes.unwritten(file)
            if key is not None:
                reading = system_environment(text, **{**options, "readonly": True, "lock": False, "create": False})
                return reading if options.get("readonly") else super().__call__(reading, file, has_folder, options)
            if options.get("readonly"):
                place = changes.opened(file, os.O_RDONLY)
                return system_environment(os.path.dirname(place) if has_folder else place, **{**options, "lock": False})
            return system_environment(_place_to_write(changes, file, has_folder), **options)

    class Environment(metaclass=AnyEnvironment):
        """Reads the user's environment until it writes."""

        def __init__(self, environment: Any, file: str, has_folder: bool, options: dict[str, Any]) -> None:
            self._environment, self._file, self._has_folder, self._options = environment, file, has_folder, options
            self._is_waiting, self._has_databases = True, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._environment, name)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._environment.close()

        def begin(self, db: Any = None, parent: Any = None, write: bool = False, buffers: bool = False) -> Any:
            if write or (self._is_waiting and not self._has_databases and changes.unwritten(self._file) is None):
                self._begin_writing()
            return self._environment.begin(db, parent, write, buffers)

        def open_db(self, key: Any = None, txn: Any = None, *arguments: Any, **options: Any) -> Any:
            """A database. If it does not exist, it is created, which writes."""
            if not self._is_waiting or key is None:
                return self._environment.open_db(key, txn, *arguments, **options)
            try:
                database = self._environment.open_db(key, txn, *arguments, **{**options, "create": False})
            except lmdb.NotFoundError:
                if not options.get("create", True):
                    raise
                self._begin_writing()
                return self._environment.open_db(key, txn, *arguments, **options)
            self._has_databases = True
            return database

        def set_mapsize(self, size: int) -> None:
            self._begin_writing()
            self._environment.set_mapsize(size)

        def _begin_writing(self) -> None:
            if self._is_waiting:
                if self._has_databases:  # their handles belong to the environment of the user
                    refuse("write", self._file)
                self._environment = system_environment(_place_to_write(changes, self._file, self._has_folder), **self._options)
                self._is_waiting = False

    class AnyTransaction(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, system_transaction)

        def __call__(cls, env: Any, *arguments: Any, **options: Any) -> Any:
            if type(env) is not Environment:
                return system_transaction(env, *arguments, **options)
            names = ("db", "parent", "write", "buffers")
            return env.begin(**(dict(zip(names, arguments, strict=False)) | options))

    class Transaction(metaclass=AnyTransaction):
        pass

    lmdb.open = lmdb.Environment = Environment
    lmdb.Transaction = Transaction


def _place_to_write(changes: Changes, file: str, has_folder: bool) -> str:
    """The path of an environment in the scratch folder, with a copy of the user's data if there is any."""
    if not has_folder:
        return changes.opened(file, os.O_RDWR | os.O_CREAT)
    folder = changes.folder(os.path.dirname(file))
    if os.path.exists(file):
        changes.opened(file, os.O_RDWR)
    return folder
