"""Calls a function as soon as a module has been imported.

A watched script must import torch itself: what it sets before, such as OMP_NUM_THREADS, is read while torch is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import _LazyModule  # type: ignore[attr-defined]
from types import ModuleType


def call_after_import(name: str, callback: Callable[[], None]) -> None:
    """Call ``callback`` once, right after the module ``name`` has been imported; at once if it already is. Several may wait for one."""
    if _is_imported(name):
        callback()
    else:
        sys.meta_path.insert(0, _ImportListener(name, callback))


def _is_imported(name: str) -> bool:
    """Whether the last line of the module has been executed. A lazy module is in ``sys.modules`` before its first one."""
    module = sys.modules.get(name)
    if module is None or type(module) is _LazyModule:  # to read an attribute would load it
        return False
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


class _ImportListener(MetaPathFinder):
    """Finds what the other finders find. The loader of the module then calls ``callback`` after the module's last line.

    A script may look for a module long before it imports it, or never import it: the listener waits until the module is executed.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name, self._callback = name, callback
        self._lock, self._is_done = threading.Lock(), False
        self._searching: set[int] = set()  # threads in ``find_spec``: a finder may ask all others, this one included

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self._is_done:
            if not self._is_done and _is_imported(self._name):  # by a loader that asked no finder
                self._call()
            return None
        if threading.get_ident() in self._searching:
            return None
        with self._search():
            spec = _find_spec(name, path, target, self)
        if spec is not None and spec.loader is not None:
            self._listen_to(spec.loader)
        return spec

    @contextmanager
    def _search(self) -> Iterator[None]:
        self._searching.add(threading.get_ident())
        try:
            yield
        finally:
            self._searching.discard(threading.get_ident())

    def _listen_to(self, loader: object) -> None:
        exec_module = getattr(loader, "exec_module", None)
        if exec_module is None or isinstance(loader, type):  # one of the interpreter's own, for all of its modules
            return

        def exec_and_call(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the loader stays with the module: it must be as without ddpbench
            exec_module(module)
            self._call()

        with suppress(AttributeError):  # of a loader with slots: the next import calls
            loader.exec_module = exec_and_call  # type: ignore[attr-defined]

    def _call(self) -> None:
        with self._lock:
            if self._is_done:
                return
            self._is_done = True
        with suppress(ValueError):
            sys.meta_path.remove(self)
        self._callback()


def _find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None, listener: _ImportListener) -> ModuleSpec | None:
    """What the finders after ``listener``, and others of its kind, find."""
    finders = list(sys.meta_path)
    for finder in finders[finders.index(listener) + 1 if listener in finders else 0 :]:
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path, target)) is not None:
            found: ModuleSpec = spec
            return found
    return None
