"""Scripts that spawned workers would run again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.record.errors import ConfigFailed
from ddpbench.script.diagnose.main_guard import check_spawned_workers, is_guarded

NUMBERS = TensorDataset(torch.arange(4))


@pytest.mark.parametrize(
    ("code", "guarded"),
    [
        ("if __name__ == '__main__':\n    train()", True),
        ("if '__main__' == __name__ and True:\n    train()", True),
        ("def main():\n    if __name__ == '__main__':\n        train()\nmain()", False),
        ("train()", False),
        ("not Python", False),
    ],
)
def test_guard_is_at_the_top_level(tmp_path: Path, code: str, guarded: bool) -> None:
    (tmp_path / "script.py").write_text(code)
    assert is_guarded(str(tmp_path / "script.py")) is guarded


def test_spawned_workers_need_a_guarded_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("train()")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))  # type: ignore[arg-type]
    check_spawned_workers(DataLoader(NUMBERS))
    check_spawned_workers(DataLoader(NUMBERS, num_workers=1, multiprocessing_context="spawn"))  # as the script does
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    with pytest.raises(ConfigFailed, match="would run the script again"):
        check_spawned_workers(DataLoader(NUMBERS))
