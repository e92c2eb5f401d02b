"""Functions that are called after the import of a module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from ddpbench.script.after_import import call_after_import


def test_all_that_wait_for_a_module_are_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waited_for").mkdir()
    (tmp_path / "waited_for" / "__init__.py").write_text("")
    (tmp_path / "waited_for" / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls: list[tuple[str, bool]] = []
    for caller in ("first", "second"):
        call_after_import("waited_for.part", lambda caller=caller: calls.append((caller, hasattr(sys.modules["waited_for.part"], "VALUE"))))
    importlib.import_module("waited_for")
    assert calls == []
    part = importlib.import_module("waited_for.part")
    assert sorted(calls) == [("first", True), ("second", True)]
    assert "exec_module" not in vars(part.__loader__)
    importlib.reload(part)
    assert len(calls) == 2
    call_after_import("waited_for.part", lambda: calls.append(("late", True)))
    assert len(calls) == 3
