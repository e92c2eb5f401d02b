"""The file of a diff: its arguments, which git passes over, and a command with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddpbench.record.script_diff import ScriptDiff
from ddpbench.script.edits.diff_file import arguments_in, diff_file_text, with_arguments, write_diff_file

DIFF = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


def test_git_applies_the_file_and_its_arguments_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1\n")
    write_diff_file(ScriptDiff(text=DIFF, arguments="--workers 14 --name 'a b'"), tmp_path / "faster.diff")
    subprocess.run(["git", "apply", "faster.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == "a = 2\n"
    assert arguments_in((tmp_path / "faster.diff").read_text()) == ["--workers", "14", "--name", "a b"]


def test_git_applies_it_in_a_folder_of_a_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (folder := tmp_path / "project").mkdir()
    (folder / "train.py").write_text("a = 1\n")
    write_diff_file(ScriptDiff(text=DIFF), folder / "faster.diff")
    subprocess.run(["git", "apply", "faster.diff"], cwd=folder, check=True)
    assert (folder / "train.py").read_text() == "a = 2\n"


def test_diff_of_another_program_has_no_arguments() -> None:
    assert arguments_in(DIFF + "+Arguments: --workers 3\n") == []
    assert arguments_in(DIFF + "Arguments: --workers 3\n") == []
    assert arguments_in(diff_file_text(ScriptDiff(arguments="--pin"))) == ["--pin"]


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("--epochs 9", "--workers 14", "--epochs 9 --workers 14"),
        ("--workers 4 --epochs 9", "--workers 14", "--workers 14 --epochs 9"),
        ("--workers=4 data", "--workers 14", "--workers=14 data"),
        ("-j 4", "--workers 14", "-j 4 --workers 14"),
        ("--pin", "--pin --workers 2", "--pin --workers 2"),
        ("", "--no-pin", "--no-pin"),
        ("--workers", "--workers 2", "--workers 2"),
        ("--workers 2 --workers 4", "--workers 8", "--workers 2 --workers 8"),
        ("--pin --lr 0.1", "--pin True", "--pin True --lr 0.1"),
    ],
)
def test_last_arguments_count(command: str, words: str, expected: str) -> None:
    assert with_arguments(command.split(), words.split()) == expected.split()
