"""Functions that are called after the import of a module, however the module is looked for and loaded."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

from ddpbench.script.after_import import call_after_import

NAME = "waited_for.part"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Of the import of ``waited_for.part``: whether its last line had been executed by then."""
    (tmp_path / "waited_for").mkdir()
    (tmp_path / "waited_for" / "__init__.py").write_text("")
    (tmp_path / "waited_for" / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    called: list[bool] = []
    call_after_import(NAME, lambda: called.append("VALUE" in vars(sys.modules[NAME])))
    yield called
    for name in ("waited_for", NAME, "imported_later"):
        sys.modules.pop(name, None)


def test_all_that_wait_for_a_module_are_called_once(calls: list[bool]) -> None:
    other: list[bool] = []
    call_after_import(NAME, lambda: other.append(True))
    importlib.import_module("waited_for")
    assert (calls, other) == ([], [])
    part = importlib.import_module(NAME)
    assert (calls, other) == ([True], [True])
    assert "exec_module" not in vars(part.__loader__)
    importlib.reload(part)
    assert len(calls) == 1
    call_after_import(NAME, lambda: other.append(False))
    assert other == [True, False]


def look_first() -> None:
    """As transformers, datasets and evaluate do."""
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.util.find_spec(NAME) is not None
    importlib.import_module(NAME)


def load_by_hand() -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def load_lazily() -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.VALUE == 1


def import_in_thread() -> None:
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    thread.join()


class Wrapped(MetaPathFinder):
    """A finder before all others, which asks those itself, as import hooks of profilers and tracers do."""

    def __init__(self, ask: Callable[[str], ModuleSpec | None]) -> None:
        self._ask, self._is_asking = ask, False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self._is_asking or name != NAME:
            return None
        self._is_asking = True
        try:
            return self._ask(name)
        finally:
            self._is_asking = False


def import_through_wrapped_finder() -> None:
    sys.meta_path.insert(0, Wrapped(importlib.util.find_spec))
    importlib.import_module(NAME)


def fail_first() -> None:
    path = importlib.import_module("waited_for").__path__[0]
    source = Path(path, "part.py")
    source.write_text("raise ImportError('not yet')\n")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    source.write_text("VALUE = 123456\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)


@pytest.mark.parametrize("load", [look_first, load_by_hand, load_lazily, import_in_thread, import_through_wrapped_finder, fail_first])
def test_called_once_after_the_last_line_of_the_module(load: Callable[[], None], calls: list[bool]) -> None:
    load()
    assert calls == [True]


def test_lazy_module_is_not_loaded_by_waiting_for_it(calls: list[bool]) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    other: list[bool] = []
    call_after_import(NAME, lambda: other.append(True))
    assert (calls, other) == ([], [])
    assert module.VALUE == 1
    assert calls == [True]


def test_module_that_another_finder_loads_is_noticed_at_the_next_import(calls: list[bool], tmp_path: Path) -> None:
    (tmp_path / "imported_later.py").write_text("")
    importlib.import_module("waited_for")
    sys.meta_path.insert(0, Wrapped(lambda name: PathFinder.find_spec(name, sys.modules["waited_for"].__path__)))
    importlib.import_module(NAME)
    assert calls == []
    importlib.import_module("imported_later")
    assert calls == [True]
