"""Which programs a script may start where the kernel does not keep them from writing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ddpbench.script.protect.audit import AuditHook
from ddpbench.script.protect.overlay import Overlay


class Refused(Exception):
    pass


def refuse(action: str, name: str) -> NoReturn:
    raise Refused(action, name)


@pytest.fixture
def hook(tmp_path: Path) -> AuditHook:
    return AuditHook(Overlay(str(tmp_path)), refuse, lambda: False, programs_are_safe=False)


@pytest.mark.parametrize(
    "words",
    [
        ["nvidia-smi", "-L"],
        ["/usr/bin/gcc", "-o", "x"],
        ["git", "rev-parse", "HEAD"],
        ["git", "-C", "repository", "--no-pager", "log", "-1"],
        ["/bin/sh", "-c", "git describe --always"],
        [b"uname", b"-a"],
        "hostname",
    ],
    ids=str,
)
def test_programs_that_only_read_are_started(hook: AuditHook, words: Any) -> None:
    hook("subprocess.Popen", ("x", words, None, None))


@pytest.mark.parametrize(
    "words",
    [
        ["cp", "a", "b"],
        ["git", "commit", "-m", "log"],
        ["git"],
        ["python", "evaluate.py"],
        ["/bin/sh", "-c", "uname > file"],
        "git status; rm -rf runs",
        "uname $(rm a)",
    ],
    ids=str,
)
def test_other_programs_are_refused(hook: AuditHook, words: Any) -> None:
    with pytest.raises(Refused) as raised:
        hook("subprocess.Popen", ("x", words, None, None))
    assert raised.value.args == ("Popen", words if isinstance(words, str) else subprocess.list2cmdline(words).replace('"', "'"))


@pytest.mark.parametrize("event", ["os.system", "os.exec", "os.posix_spawn"])
def test_every_way_to_start_a_program_is_checked(hook: AuditHook, event: str) -> None:
    with pytest.raises(Refused):
        hook(event, (b"rm a",) if event == "os.system" else ("rm", ["rm", "a"], None))


def test_compilers_of_torch_start_what_they_like(hook: AuditHook) -> None:
    caller = "def compile(hook): hook('subprocess.Popen', ('x', ['my-compiler'], None, None))"
    names: dict[str, Any] = {"__name__": "torch._inductor.cpp_builder"}
    exec(caller, names)
    names["compile"](hook)
    names["__name__"] = "train"
    with pytest.raises(Refused):
        names["compile"](hook)
