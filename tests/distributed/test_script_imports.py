"""Scripts that import other packages, which look for torch in their own ways, before torch or after it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SUPPORT, only_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

IMPORTS = str(SUPPORT / "scripts" / "imports.py")
PACKAGES = ("transformers", "datasets", "evaluate", "accelerate", "lightning", "timm", "ultralytics")
Launch = Callable[..., Any]


def check_seen(launch: Launch, results: Path, *arguments: str) -> None:
    done = launch([*PLAIN, "watch", "-o", str(results), IMPORTS, *arguments], timeout=100)
    assert done.returncode == 0, done.stderr
    record = only_record(results)
    assert record.script is not None
    assert (record.status, record.script.batches, record.script.epochs) == ("ok", 120, 3)


@pytest.mark.parametrize("package", PACKAGES)
def test_training_is_seen_after_the_import_of(package: str, launch: Launch, results: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    check_seen(launch, results, package)


def test_training_is_seen_with_all_of_them_imported_after_torch(launch: Launch, results: Path) -> None:
    check_seen(launch, results, "--after", *(each for each in PACKAGES if importlib.util.find_spec(each)))


@pytest.mark.parametrize("command", [[*PLAIN, "watch"], [*PLAIN, "watch", "--gpus", "2"]])
def test_script_without_torch_ends_with_its_own_code(command: list[str], launch: Launch, results: Path, tmp_path: Path) -> None:
    script = tmp_path / "other.py"
    script.write_text("print('done')\n")
    done = launch([*command, "-o", str(results), str(script)])
    assert done.returncode == 0, done.stderr
    assert "other.py did not import torch: there is nothing to report" in done.stderr
