"""CONTRIBUTING.md names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_files_and_folders_exist() -> None:
    paths = {path for path in re.findall(r"`([a-z_/0-9]+(?:\.py|\.sh|\.md|/))`", CONTRIBUTING) if "<" not in path}
    missing = [path for path in paths if not any((root / path).exists() for root in (ROOT, ROOT / "ddpbench", ROOT / "tests" / "pages"))]
    assert len(paths) > 30
    assert not missing


def test_functions_are_defined_in_the_files_beside_them() -> None:
    named = re.findall(r"`([a-z_/0-9]+\.py)` ((?:`[\w.]+`(?:, )?)+)", CONTRIBUTING)
    assert len(named) > 20
    for path, names in named:
        defined = {node.name for node in ast.walk(ast.parse((ROOT / "ddpbench" / path).read_text())) if hasattr(node, "name")}
        assert {part for name in re.findall(r"`([\w.]+)`", names) for part in name.split(".")} <= defined, path


def test_names_are_defined_in_the_files_that_follow_them() -> None:
    named = re.findall(r"`(\w+)` (?:of |in |\()`([a-z_/0-9]+\.py)`", " ".join(CONTRIBUTING.split()))
    assert len(named) > 10
    for name, path in named:
        (source,) = (folder / path for folder in (ROOT, ROOT / "ddpbench") if (folder / path).exists())
        assert re.search(rf"^(?:class |def )?{name}\b.*[:=(]", source.read_text(), re.MULTILINE), f"{name} in {path}"


def test_command_that_counts_a_workload_prints_both_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r'python -c "(.*\bworkload_cost\b.*)"', CONTRIBUTING)
    for call in ("'mnist-cnn', 28", "'disc-mlp-10', None"):
        exec(program.replace("'NAME', 28", call), {})
    assert capsys.readouterr().out.splitlines() == [
        "ModelCost(parameters=1199882, flops_per_sample=71565312.0)",
        "ModelCost(parameters=703142, flops_per_sample=4206560.0)",
    ]


def test_words_are_sorted() -> None:
    words = re.findall(r"^\| ([^|`]+) \|", CONTRIBUTING.partition("## Words")[2], re.MULTILINE)[1:]
    assert len(words) > 50
    assert words == sorted(words, key=str.casefold)
