"""Databases of sqlite3: the user's is opened read-only, and is exchanged for a copy before the first statement that writes.

A connection object stays the same: it is initialized again. Cursors that are in the middle of a query go on in the user's database.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ddpbench.script.after_import import call_after_import
from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.redirect import read_path

ARGUMENTS = ("timeout", "detect_types", "isolation_level", "check_same_thread", "factory", "cached_statements", "uri")
"""Of ``sqlite3.connect``, after the database."""

READING = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:SELECT|VALUES|WITH|EXPLAIN|PRAGMA|BEGIN|COMMIT|END|ROLLBACK)\b", re.IGNORECASE | re.DOTALL
)
"""The begin of a statement that mostly reads; the database refuses it if it writes."""

PRAGMA = re.compile(r"\s*PRAGMA\b", re.IGNORECASE)

PARTS = ("-wal", "-journal")
"""Ends of the names of files that belong to a database, if they exist."""

SETTERS = [
    *("create_function", "create_aggregate", "create_window_function", "create_collation", "set_authorizer", "set_progress_handler"),
    *("set_trace_callback", "enable_load_extension", "load_extension", "setlimit", "setconfig"),
]
"""Methods that must be called again for the copy."""

ATTRIBUTES = ("row_factory", "text_factory", "isolation_level", "autocommit")

HEADER, ROLLBACK_JOURNAL = b"SQLite format 3\0", b"\1\1"
"""The begin of a database, and what follows two bytes later if it can be read without writing any file beside it."""


def redirect_databases(changes: Changes, is_own: Callable[[], bool]) -> None:
    """Replace ``sqlite3.connect`` once the module is imported."""
    call_after_import("sqlite3.dbapi2", lambda: _replace_connect(changes, is_own))


def _replace_connect(changes: Changes, is_own: Callable[[], bool]) -> None:
    sqlite3: Any = sys.modules["sqlite3.dbapi2"]
    system_connect = sqlite3.connect
    connection_class = _waiting_connection(sqlite3, changes)

    @functools.wraps(system_connect)
    def connect(database: Any, *arguments: Any, **options: Any) -> Any:
        options = dict(zip(ARGUMENTS, arguments, strict=False)) | options
        path = None if options.get("uri") or database == ":memory:" else read_path(database)
        if path is None or is_own():  # the audit hook lets read-only URIs pass
            return system_connect(database, **options)
        key = changes.unwritten(path)
        if key is None or options.get("factory", sqlite3.Connection) is not sqlite3.Connection or not _can_be_read_only(key):
            for part in PARTS:
                if os.path.exists(f"{path}{part}"):
                    changes.opened(f"{path}{part}", os.O_RDWR)
            return system_connect(changes.opened(path, os.O_RDWR | os.O_CREAT), **options)
        options.pop("uri", None)
        connection = system_connect(f"file:{quote(key)}?mode=ro", **{**options, "uri": True, "factory": connection_class})
        connection.wait(key, options)
        return connection

    sqlite3.connect = connect


def _can_be_read_only(key: str) -> bool:
    with open(key, "rb") as file:
        header = file.read(len(HEADER) + 4)
    is_complete = not any(os.path.exists(f"{key}{part}") for part in PARTS)
    return header.startswith(HEADER) and header.endswith(ROLLBACK_JOURNAL) and is_complete


def _waiting_connection(sqlite3: Any, changes: Changes) -> type:
    """The class of connections that wait for the first statement that writes."""

    class WaitingCursor(sqlite3.Cursor):  # type: ignore[misc]
        def execute(self, statement: str, *parameters: Any) -> Any:
            connection = self.connection
            if not READING.match(statement) or connection.was_written():
                connection.begin_writing()
            try:
                result = super().execute(statement, *parameters)
            except sqlite3.OperationalError as problem:
                if not connection.is_waiting or problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                    raise
                connection.begin_writing()
                return super().execute(statement, *parameters)
            if connection.is_waiting and PRAGMA.match(statement):
                connection.settings.append(("execute", (statement,), {}))
            return result

        def executemany(self, statement: str, *parameters: Any) -> Any:
            self.connection.begin_writing()
            return super().executemany(statement, *parameters)

        def executescript(self, script: str) -> Any:
            self.connection.begin_writing()
            return super().executescript(script)

    class WaitingConnection(sqlite3.Connection):  # type: ignore[misc]
        is_waiting = False

        def wait(self, key: str, options: dict[str, Any]) -> None:
            self.is_waiting, self._key, self._options = True, key, options
            self.settings: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

        def was_written(self) -> bool:
            """Whether another connection, perhaps of another process, has written, which this one sees after its transaction."""
            return self.is_waiting and not self.in_transaction and changes.unwritten(self._key) is None

        def begin_writing(self) -> None:
            """Be a connection to the copy from now on."""
            if not self.is_waiting:
                return
            in_transaction, settings = self.in_transaction, self.settings
            kept = {name: getattr(self, name) for name in ATTRIBUTES if hasattr(self, name)}
            super().__init__(changes.opened(self._key, os.O_RDWR), **self._options)  # which clears all attributes
            self.is_waiting = False
            for name, value in kept.items():
                if getattr(self, name) != value:
                    setattr(self, name, value)
            for name, arguments, options in settings:
                getattr(self, name)(*arguments, **options)
            if in_transaction and not self.in_transaction:
                self.execute("BEGIN")

        def cursor(self, factory: Any = None) -> Any:
            if factory is not None:  # its statements are not seen
                self.begin_writing()
            return super().cursor(WaitingCursor if factory is None else factory)

        def execute(self, *arguments: Any) -> Any:
            return self.cursor().execute(*arguments)

        def executemany(self, *arguments: Any) -> Any:
            return self.cursor().executemany(*arguments)

        def executescript(self, script: str) -> Any:
            return self.cursor().executescript(script)

        def blobopen(self, *arguments: Any, **options: Any) -> Any:
            if not options.get("readonly"):
                self.begin_writing()
            return super().blobopen(*arguments, **options)

        def deserialize(self, *arguments: Any, **options: Any) -> None:
            self.begin_writing()
            super().deserialize(*arguments, **options)

        def backup(self, target: Any, **options: Any) -> None:
            if isinstance(target, WaitingConnection):
                target.begin_writing()
            super().backup(target, **options)

    for name in SETTERS:
        if original := getattr(sqlite3.Connection, name, None):
            setattr(WaitingConnection, name, _recorded(name, original))
    return WaitingConnection


def _recorded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(connection: Any, *arguments: Any, **options: Any) -> Any:
        if connection.is_waiting:
            connection.settings.append((name, arguments, options))
        return original(connection, *arguments, **options)

    return call
