"""The same operations on two equal trees, one of them behind an overlay, have the same results."""

from __future__ import annotations

import os
import pickle
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench.script.protect.changes import Changes
from ddpbench.script.protect.overlay import Overlay
from ddpbench.script.protect.redirect import Redirect

Call = Callable[..., Any]
NAMES = ["a", "b", "c", "dir", "dir/a", "dir/b", "dir/sub", "dir/sub/c", "link", "out", "out/a", "to_dir", "to_dir/a"]


class Files:
    """The functions of ``os`` with relative paths below ``root``, by name."""

    def __init__(self, root: Path, replacements: dict[Any, Any] | None = None) -> None:
        self.root, self._replacements = root, replacements or {}

    def function(self, name: str) -> Call:
        original = getattr(os, name)
        function: Call = self._replacements.get(original, original)
        return function

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str) -> str:
        with self._replacements.get(open, open)(self.path(name)) as file:
            return str(file.read())

    def write(self, name: str, mode: str, text: str) -> None:
        with self._replacements.get(open, open)(self.path(name), mode) as file:
            assert file.name == self.path(name)
            file.write(text)

    def tree(self, name: str = ".") -> dict[str, Any]:
        """Everything below a folder: types, contents, targets, permissions."""
        found: dict[str, Any] = {}
        scandir, lstat, readlink = (self.function(each) for each in ("scandir", "lstat", "readlink"))
        assert sorted(self.function("listdir")(self.path(name))) == sorted(entry.name for entry in scandir(self.path(name)))
        for entry in scandir(self.path(name)):
            below = f"{name}/{entry.name}"
            assert entry.path == self.path(below)
            mode = lstat(entry.path).st_mode
            assert (entry.is_symlink(), entry.is_dir(follow_symlinks=False)) == (stat.S_ISLNK(mode), stat.S_ISDIR(mode))
            if stat.S_ISDIR(mode):
                found |= {below: None} | self.tree(below)
            else:
                found[below] = readlink(entry.path) if stat.S_ISLNK(mode) else (self.read(below), stat.S_IMODE(mode))
        return found


def fill(root: Path) -> None:
    (root / "dir" / "sub").mkdir(parents=True)
    (root / "out").mkdir()
    for name in ("a", "b", "dir/a", "dir/sub/c"):
        (root / name).write_text(f"old {name}")
    (root / "b").chmod(0o600)
    (root / "link").symlink_to("dir/a")
    (root / "to_dir").symlink_to("dir")


def step(files: Files, choice: random.Random) -> tuple[str, Any]:
    """Do something, chosen at random; returns what, and its result or error."""
    name, other = choice.choice(NAMES), choice.choice(NAMES)
    path, text, target = files.path(name), str(choice.random()), choice.choice(["a", "dir", "../a", "gone"])
    actions: dict[str, Callable[[], Any]] = {
        **{f"write {mode}": lambda mode=mode: files.write(name, mode, text) for mode in ("w", "a", "x", "r+")},
        "read": lambda: files.read(name),
        **{each: lambda each=each: files.function(each)(path, files.path(other)) for each in ("rename", "replace", "link")},
        **{each: lambda each=each: files.function(each)(path) for each in ("remove", "unlink", "rmdir", "mkdir", "readlink")},
        **{each: lambda each=each: stat.S_IFMT(files.function(each)(path).st_mode) for each in ("stat", "lstat")},
        f"symlink {target}": lambda: files.function("symlink")(target, path),
        "truncate": lambda: files.function("truncate")(path, 3),
        "access": lambda: files.function("access")(path, os.R_OK),
        "listdir": lambda: sorted(files.function("listdir")(path)),
    }
    action = choice.choice(list(actions))
    try:
        result = actions[action]()
    except OSError as problem:
        kind = "missing" if isinstance(problem, FileNotFoundError | NotADirectoryError) else type(problem).__name__
        result = (
            "failed" if action in ("link", "rename", "replace") else kind,  # several things may be wrong at once
            *(str(each).replace(str(files.root), "") for each in (problem.filename, problem.filename2)),
        )
    return f"{action} {name} {other}", result


def protected(root: Path, scratch: Path) -> tuple[Files, Overlay]:
    (scratch / "tmp").mkdir(parents=True)
    overlay = Overlay(str(scratch))
    return Files(root, Redirect(overlay, Changes(overlay), lambda: False).replacements), overlay


@pytest.mark.parametrize("seed", range(40))
def test_random_operations_have_the_same_results_and_leave_the_files(seed: int, tmp_path: Path) -> None:
    bare, user = tmp_path / "bare" / "files", tmp_path / "user" / "files"  # "../a" is in another folder for each
    for root in (bare, user):
        root.mkdir(parents=True)
        fill(root)
    files, overlay = protected(user, tmp_path / "scratch")
    untouched = Files(user.parent).tree()
    for number in range(60):
        expected, found = (step(each, random.Random(seed * 1000 + number)) for each in (Files(bare), files))
        assert found == expected
    assert files.tree() == Files(bare).tree()
    assert Files(user.parent).tree() == untouched
    assert all(path.startswith(f"{tmp_path}/user/") for path in overlay.changed())


def test_ranks_see_what_another_rank_changes(tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    fill(user)
    one, _ = protected(user, tmp_path / "scratch")
    overlay = Overlay(str(tmp_path / "scratch"))
    other = Files(user, Redirect(overlay, Changes(overlay), lambda: False).replacements)
    assert other.read("to_dir/a") == "old dir/a"
    one.write("dir/a", "w", "new")
    assert other.read("to_dir/a") == "new"
    one.function("remove")(one.path("to_dir"))
    one.function("symlink")("out", one.path("to_dir"))
    with pytest.raises(FileNotFoundError):
        other.read("to_dir/a")
    one.function("mkdir")(one.path("made"))
    one.write("made/a", "w", "made")
    assert other.read("made/a") == "made"
    assert overlay.changed() == [str(user / name) for name in ("dir/a", "made/a", "to_dir")]


def test_unchanged_files_are_read_under_their_own_path(tmp_path: Path) -> None:
    fill(tmp_path)
    files, overlay = protected(tmp_path, tmp_path / "scratch")
    for _ in range(2):
        for name in ("a", "to_dir/sub/../a", "link", "gone"):
            assert overlay.source(files.path(name)) == files.path(name)
        files.write("out/new", "w", "")


def test_file_that_does_not_fit_is_not_copied(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 43)
    files, overlay = protected(tmp_path, tmp_path / "scratch")
    with pytest.raises(OSError, match="no room for a copy") as raised:
        files.write("huge", "a", "more")
    assert raised.value.filename == files.path("huge")
    assert overlay.changed() == []


def test_replaced_functions_are_no_methods_and_can_be_pickled(tmp_path: Path) -> None:
    files, _ = protected(tmp_path, tmp_path / "scratch")

    class Holder:
        look_up = files.function("listdir")

    assert "scratch" in Holder().look_up(str(tmp_path))
    assert pickle.loads(pickle.dumps(Holder.look_up)) is os.listdir
