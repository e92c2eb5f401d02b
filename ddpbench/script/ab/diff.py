"""Applies a diff to copies of the sources that it changes, in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ddpbench.record.errors import UsageError
from ddpbench.script.edits.diff_file import arguments_in

CHANGED_FILE = re.compile(r"^\+\+\+ (.+?)(?:\t.*)?$", re.MULTILINE)
"""The line of a unified diff that names the file after the change."""

PREFIX = re.compile(r"^[bciow]/")
"""What git puts before the name of a file."""


def patch_sources(diff: Path, folder: Path) -> dict[str, str]:
    """Apply ``diff`` to copies in ``folder``; returns the path of each copy by that of its source. Empty if it only has arguments.

    Paths in the diff are relative to the working directory, or to the root of its repository. Raises UsageError if it does not apply, or
    changes anything else than Python files that exist.
    """
    text = read_diff(diff)
    names = CHANGED_FILE.findall(text)
    if not names and arguments_in(text):
        return {}
    if not names:
        raise UsageError(f"'{diff}' is no unified diff", "git diff makes one")
    if shutil.which("git") is None:
        raise UsageError("ab applies a diff with git, which is not installed", "install git")
    strip = all(PREFIX.match(name) for name in names)
    files = [PREFIX.sub("", name) if strip else name for name in names]
    root = _root_of(files, diff)
    for name in files:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, copy)
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", f"-p{int(strip)}", str(diff.resolve())],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.strip().partition("\n")[0].removeprefix("error: ")
        raise UsageError(f"'{diff}' does not apply: {reason}", "it must be made from the present sources")
    patched = {os.path.realpath(root / name): str(folder / name) for name in files}
    for source, copy_path in patched.items():
        _check_syntax(source, Path(copy_path))
    return patched


def read_diff(diff: Path) -> str:
    """The text of ``diff``. Raises UsageError if it has none."""
    try:
        return diff.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "no text"
        raise UsageError(f"cannot read the diff '{diff}': {reason}", "git diff makes one") from problem


def _root_of(names: list[str], diff: Path) -> Path:
    """The folder that the paths of the diff are relative to."""
    top = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False).stdout.strip()
    roots = [Path.cwd(), *([Path(top)] if top else [])]
    for name in names:
        path = Path(name)
        if path.suffix != ".py" or path.is_absolute() or ".." in path.parts:
            raise UsageError(f"'{diff}' changes {name}", "ab tries changes of Python files below the working directory")
    found = next((root for root in roots if all((root / name).is_file() for name in names)), None)
    if found is None:
        missing = next(name for name in names if not (roots[0] / name).is_file())
        raise UsageError(f"'{diff}' changes {missing}, which is not there", "start ab where 'git apply' would work")
    return found


def _check_syntax(source: str, copy: Path) -> None:
    try:
        compile(copy.read_bytes(), source, "exec", dont_inherit=True)
    except SyntaxError as problem:
        raise UsageError(f"with the diff, {os.path.basename(source)} is no valid Python: line {problem.lineno}: {problem.msg}") from problem
