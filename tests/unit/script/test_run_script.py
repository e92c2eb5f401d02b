"""A script runs as the interpreter runs it: both are started, and must print the same."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
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


@pytest.mark.parametrize("command", ["watch", "diagnose"])
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["python3.11", "train.py"], "leave out the interpreter"),
        (["torchrun", "--nproc_per_node=2", "train.py"], "the launcher comes first: torchrun"),
    ],
    ids=["python", "torchrun"],
)
def test_command_in_place_of_a_script_is_met_with_what_is_meant(words: list[str], hint: str, command: str) -> None:
    done = run(["-m", "ddpbench", command, *words])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: cannot run '{words[0]}': no such file\n" in done.stderr
    assert hint in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gone.py"], "cannot run 'gone.py': no such file"),
        (["."], "cannot run '.': a folder without __main__.py"),
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
    stderr = re.sub(r"^ddpbench: watching .*\n", "", done.stderr)  # whether a module exists, its parent package knows, which is run first
    assert re.fullmatch(rf"ddpbench: error: {re.escape(reason)}\nhint: .*\n", stderr)


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


SHOW = """
import json, sys
here = sys.modules["__main__"]
print(json.dumps([__file__, __name__, repr(__package__), __spec__ and __spec__.name, sys.argv, sys.path[0]]))
"""


def assert_runs_alike(words: list[str], folder: Path) -> str:
    """The script prints the same with and without ddpbench; returns its stderr without ddpbench."""
    bare, watched = run(words, folder), run(["-m", "ddpbench", "watch", *words], folder)
    assert bare.stdout
    assert (watched.stdout, own_lines(watched.stderr), watched.returncode) == (bare.stdout, bare.stderr, bare.returncode)
    return bare.stderr


def test_folder_with_a_main_file_runs_as_with_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(f"import sibling\n{SHOW}")
    (tmp_path / "app" / "sibling.py").touch()
    assert_runs_alike(["app", "a"], tmp_path)


def test_zip_file_runs_as_with_the_interpreter(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", f"import sibling\n{SHOW}")
        archive.writestr("sibling.py", "")
    assert_runs_alike(["app.pyz", "a"], tmp_path)


def test_folder_and_archive_without_a_main_file_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("other.py", "")
    for name, message in ((".", "a folder without __main__.py"), ("app.pyz", "it has no __main__.py")):
        done = run(["-m", "ddpbench", "watch", name], tmp_path)
        assert (done.returncode, f"cannot run '{name}': {message}" in done.stderr) == (2, True), done.stderr


def test_path_through_a_link_and_back_is_that_of_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "t.py").write_text(f"import sibling\n{SHOW}")
    (tmp_path / "a" / "sibling.py").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a" / "deep")
    for name in ("link/../t.py", "./a/t.py", str(tmp_path / "link" / ".." / "t.py")):
        assert_runs_alike([name], tmp_path)


@pytest.mark.parametrize("name", ["random", "rich", "statistics", "msgspec"])
def test_modules_of_the_script_precede_those_that_ddpbench_has_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("mine = True\n")
    (tmp_path / "t.py").write_text(f"import {name}\nprint({name}.mine, {name}.__file__)\n")
    assert_runs_alike(["t.py"], tmp_path)


def test_traceback_has_no_frames_of_ddpbench(tmp_path: Path) -> None:
    own = Path(sys.modules["ddpbench"].__path__[0])
    source = (own / "record" / "names.py").as_posix()
    (tmp_path / "t.py").write_text(
        "from ddpbench.record.names import call_object\n"
        "def fail(value):\n    raise OSError('first')\n"
        "print('begins')\n"
        "try:\n    call_object('t:fail', fail, 1)\nexcept Exception as problem:\n    raise ValueError('second') from problem\n"
    )
    bare, watched = run(["t.py"], tmp_path), run(["-m", "ddpbench", "watch", "t.py"], tmp_path)
    assert source in bare.stderr
    assert source not in watched.stderr
    assert watched.stderr.count("Traceback (most recent call last)") == bare.stderr.count("Traceback (most recent call last)") == 3
    assert "in fail" in watched.stderr
