"""Modules of the script that are named like those that ddpbench has imported: the script gets its own, as with python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

AT_STARTUP = frozenset(sys.builtin_module_names) | {
    *("_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat"),
    *("zipimport", "__main__", "ddpbench", "psutil"),
}
"""Modules that the interpreter imports before a script, ddpbench itself, and psutil, which looks itself up by name."""


class OwnModules:
    """Keeps the modules of ddpbench while the script has others of the same name: a ``random.py`` or ``rich.py`` beside it."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._kept: dict[str, ModuleType] = {}

    def hide(self, folder: str) -> None:
        """Remove the modules from ``sys.modules`` that ``folder``, the first of ``sys.path``, has too: its own are imported instead."""
        imported = {name.partition(".")[0] for name in sys.modules} - AT_STARTUP
        self._names = frozenset(name for name in imported & _modules_in(folder) if not _is_in(folder, sys.modules.get(name)))
        self._kept = self._take()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The modules of ddpbench are back meanwhile, for what it imports later."""
        if not self._names:
            yield
            return
        of_script = self._take()
        sys.modules.update(self._kept)
        try:
            yield
        finally:
            self._kept = self._take()
            sys.modules.update(of_script)

    def _take(self) -> dict[str, ModuleType]:
        """Remove and return all modules with these names, and their submodules."""
        found = [name for name in sys.modules if name.partition(".")[0] in self._names]
        return {name: sys.modules.pop(name) for name in found}


def _modules_in(folder: str) -> set[str]:
    """Top-level names that can be imported from ``folder``. A folder without ``__init__.py`` comes last in an import."""
    try:
        with os.scandir(folder) as entries:
            return {
                each.name.partition(".")[0]
                for each in entries
                if each.name.endswith((".py", ".so")) or os.path.isfile(os.path.join(each.path, "__init__.py"))
            }
    except OSError:
        return set()


def _is_in(folder: str, module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file).startswith(os.path.realpath(folder) + os.sep)


OWN_MODULES = OwnModules()
"""Those of this process, which runs one script."""
