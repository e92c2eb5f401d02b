"""Calls a function as soon as a module has been imported.

A watched script must import torch itself: what it sets before, such as OMP_NUM_THREADS, is read while torch is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def call_after_import(name: str, callback: Callable[[], None]) -> None:
    """Call ``callback`` once, right after the module ``name`` has been imported; at once if it already is. Several may wait for one."""
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _ImportListener(name, callback))


class _ImportListener(MetaPathFinder):
    """Finds nothing itself. It lets the loader of the module call ``callback`` after its last line."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name, self._callback = name, callback

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)  # it may become importable later
            return None
        loader = spec.loader
        exec_module = loader.exec_module

        def exec_and_call(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the loader stays with the module: it must be as without ddpbench
            exec_module(module)
            self._callback()

        loader.exec_module = exec_and_call  # type: ignore[method-assign]
        return spec
