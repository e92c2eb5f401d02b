"""A script runs as the interpreter runs it: both are started, and must print the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.record.errors import UsageError
from ddpbench.script.run_script import Program, check_program

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts"


def run(words: list[str], folder: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, input="typed\n", capture_output=True, text=True, timeout=60, check=False)


def own_lines(stderr: str) -> str:
    """Stderr without the lines of ddpbench."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("ddpbench"))


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["probe.py", "a", "--gpus", "-o"], SCRIPTS),
        ([str(SCRIPTS / "probe.py")], SCRIPTS.parent),
        (["probe.py", "exit-3"], SCRIPTS),
        (["probe.py", "exit-text"], SCRIPTS),
        (["probe.py", "raise"], SCRIPTS),
        (["probe.py", "syntax"], SCRIPTS),
        (["probe.py", "interrupt"], SCRIPTS),
        (["-m", "probe", "--json"], SCRIPTS),
        (["-m", "probed", "a"], SCRIPTS),
        (["-m", "probed.deep", "exit-3"], SCRIPTS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.name,
)
def test_script_runs_as_with_the_interpreter(words: list[str], folder: Path, tmp_path: Path) -> None:
    bare = run(words, folder)
    watched = run(["-m", "ddpbench", "watch", "-o", str(tmp_path), *words], folder)
    assert '"torch": false' in bare.stdout
    assert "at exit" in bare.stdout
    assert (watched.stdout, own_lines(watched.stderr), watched.returncode) == (bare.stdout, bare.stderr, bare.returncode)
    assert re.search(r"^ddpbench: note: \S+ did not import torch", watched.stderr, re.MULTILINE)
    assert not list(tmp_path.iterdir())


def test_script_behind_a_symlink_finds_its_siblings(tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(SCRIPTS / "probe.py")
    bare, watched = run([str(link)], tmp_path), run(["-m", "ddpbench", "watch", str(link)], tmp_path)
    assert bare.returncode == 0, bare.stderr
    assert watched.stdout == bare.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gone.py"], "cannot run 'gone.py': no such file"),
        (["."], "cannot run '.': a folder"),
        (["-m", "gone.train"], "no module named 'gone.train'"),
        (["-m", "probed.gone"], "no module named 'probed.gone'"),
        (["--json", "-", "probe.py"], "--json cannot be '-': stdout belongs to the script"),
        ([], "missing argument 'SCRIPT [ARGUMENT]...'"),
        (["--steps", "0", "probe.py"], "--steps cannot be '0'"),
        (["--every", "5", "probe.py"], "--every cannot be '5'"),
        (["--hang-timeout", "0", "probe.py"], "--hang-timeout cannot be '0'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unknown_script_is_one_line_and_a_usage_error(words: list[str], reason: str) -> None:
    done = run(["-m", "ddpbench", "watch", *words])
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"ddpbench: error: {re.escape(reason)}\nhint: .*\n", done.stderr)


def test_error_in_a_parent_package_is_that_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "broken" / "train.py").write_text("")
    done = run(["-m", "ddpbench", "watch", "-m", "broken.train"], tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'not_installed_anywhere'" in done.stderr
    assert "run_script.py" not in done.stderr


def test_modules_are_checked_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exploding.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_program(Program("exploding", is_module=True))
    with pytest.raises(UsageError):
        check_program(Program("exploding_gone", is_module=True))
