"""Keeps the user's files read-only from the first line of a script to the end of its process."""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import multiprocessing.spawn
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from ddpbench.report.messages.protected_files import copy_text
from ddpbench.script.patched_sources import side_of_environment, use_patched_sources
from ddpbench.script.protect.arrow_files import redirect_arrow_files
from ddpbench.script.protect.audit import AuditHook
from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.databases import redirect_databases
from ddpbench.script.protect.denied import find_denied
from ddpbench.script.protect.folders import prepare_folders
from ddpbench.script.protect.landlock import restrict_writes
from ddpbench.script.protect.lmdb_environments import redirect_lmdb
from ddpbench.script.protect.native import redirect_native_functions
from ddpbench.script.protect.overlay import Overlay
from ddpbench.script.protect.redirect import Redirect
from ddpbench.script.protect.refusal import Refusal, RefusedWrite
from ddpbench.script.protect.shared_memory import redirect_shared_memory
from ddpbench.script.protect.trackers import mute_trackers

LARGE_BYTES = 1 << 20
"""Size from which the copy of a file is named: reading the copy may take another time than reading the file."""

MAX_NAMED_COPIES = 5
"""Copies that one process names."""

P = ParamSpec("P")
T = TypeVar("T")


def print_copy(path: str, size: int) -> None:
    sys.stderr.write(f"ddpbench: note: {copy_text(path, size)}\n")


class FileProtection:
    """What the script writes, renames or deletes happens in a scratch folder, where it finds it again; anything else is refused.

    Three lines of defence: functions of Python are redirected; what an audit hook sees of the rest is refused; and from Linux 5.19 on the
    kernel denies it even to C++ code and to programs that the script starts.
    """

    def __init__(
        self,
        scratch: Path,
        on_refusal: Callable[[Refusal], None],
        on_copy: Callable[[str, int], None] = print_copy,
        use_landlock: bool = True,
    ) -> None:
        """Ranks of one node share the folder ``scratch``.

        ``on_refusal`` is called before the script's error, in the thread that is refused something, ``on_copy`` with the path and the
        size of a large file of which a copy was made. In a spawned worker the first is not called, and copies are printed.
        """
        self.scratch = os.path.realpath(scratch)
        self._on_refusal, self._on_copy, self._use_landlock = on_refusal, on_copy, use_landlock
        self._writable: list[str] = []
        self._named_copies = 0
        self._writer = ThreadPoolExecutor(1, "ddpbench-writer")
        self._own_threads: set[int | None] = set()  # identifiers
        self.has_landlock = False
        """Whether the kernel denies what Python cannot see."""

    def install(self) -> None:
        """Protect this thread and all that it will start; call it before torch is imported. It cannot be undone."""
        self._own_threads.add(self._writer.submit(threading.get_ident).result())  # it starts before the kernel restricts this thread
        os.register_at_fork(after_in_child=self._own_threads.clear)  # a thread of the child may get the same identifier
        self._writable = prepare_folders(self.scratch)
        mute_trackers(self.scratch, self._refuse)
        self.has_landlock = self._use_landlock and restrict_writes([*self._writable, "/dev", "/proc"])
        self._redirect()

    def run_unprotected(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call ``function`` in a thread that may write everywhere, for ddpbench's own files. Only in the process of ``install``."""
        if self._is_own():  # called by such a function
            return function(*arguments, **options)
        return self._writer.submit(function, *arguments, **options).result()

    def exempt(self, thread: threading.Thread) -> None:
        """Let a thread of ddpbench's own, which was started before ``install``, write everywhere."""
        self._own_threads.add(thread.ident)

    @property
    def changed(self) -> list[str]:
        """The files that the script wrote, renamed or deleted, in any process with the same scratch folder."""
        return Overlay(self.scratch, self._writable).changed()

    def denied(self, problem: BaseException | None) -> Refusal | None:
        """What the protection kept from the script, if that ended it with ``problem``; None if it would have failed without, too."""
        return find_denied(problem, Overlay(self.scratch, self._writable), self.has_landlock)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, list[str], bool]]:
        """Sent to a spawned process, where it is installed before that imports the script."""
        return protect_spawned_process, (self.scratch, self._writable, self.has_landlock)

    def _redirect(self) -> None:
        overlay = Overlay(self.scratch, self._writable)
        changes = Changes(overlay, self._name_copy)
        os.register_at_fork(before=changes.write_back)
        multiprocessing.util.register_after_fork(changes, _write_back_at_end)
        atexit.register(changes.write_back)
        Redirect(overlay, changes, self._is_own).install()
        redirect_native_functions(changes, self._is_own)
        redirect_databases(changes, self._is_own)
        redirect_shared_memory(overlay, changes, self._is_own)
        redirect_arrow_files(changes, self._is_own)
        redirect_lmdb(changes, self._is_own, self._refuse)
        sys.addaudithook(AuditHook(overlay, self._refuse, self._is_own, programs_are_safe=self.has_landlock))
        multiprocessing.set_forkserver_preload([])  # by default the script, in a process that is not protected
        prepare = multiprocessing.spawn.get_preparation_data
        multiprocessing.spawn.get_preparation_data = lambda name: {**prepare(name), "protection": self}

    def _name_copy(self, path: str, size: int) -> None:
        if size >= LARGE_BYTES and self._named_copies < MAX_NAMED_COPIES:
            self._named_copies += 1
            self._on_copy(path, size)

    def _is_own(self) -> bool:
        return threading.get_ident() in self._own_threads

    def _refuse(self, action: str, name: str) -> NoReturn:
        self._on_refusal(Refusal(action, name))
        raise RefusedWrite(errno.EACCES, f"refused while ddpbench diagnoses the script ({action})", name)


def protect_spawned_process(scratch: str, writable: list[str], has_landlock: bool) -> None:
    """Protect a process that the script starts through ``multiprocessing``. Landlock and the environment are inherited."""
    protection = FileProtection(Path(scratch), lambda refusal: None)
    protection._writable, protection.has_landlock = writable, has_landlock
    protection._redirect()
    if side := side_of_environment():
        use_patched_sources(side.patched)


def _write_back_at_end(changes: Changes) -> None:
    """Let a process of ``multiprocessing``, which ends without atexit functions, write back what it has written to memory maps."""
    multiprocessing.util.Finalize(changes, changes.write_back, exitpriority=0)
