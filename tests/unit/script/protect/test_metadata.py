"""What programs change of files although they cannot write them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpbench.script.protect import metadata
from ddpbench.script.protect.metadata import FileStates


@pytest.fixture
def in_memory() -> Iterator[Path]:
    path = Path(f"/dev/shm/mine-{os.getpid()}")
    path.write_text("mine")
    yield path
    path.unlink(missing_ok=True)


def files(folder: Path) -> list[Path]:
    found = [folder / name for name in ("train.py", "data/0.bin", "data/deep/1.bin", "log.txt")]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old")
    return found


def run(*words: str | Path) -> None:
    time.sleep(0.02)  # the clock of files is coarse
    subprocess.run(words, check=True)


def test_scratch_folders_of_a_diagnosis_are_left_out(tmp_path: Path) -> None:
    """The script may be started in the temporary folder."""
    script, *_ = files(tmp_path)
    own = tmp_path / "ddpbench-scratch-1" / "generation"
    own.parent.mkdir()
    own.write_text("0")
    states = FileStates([str(tmp_path)])
    run("touch", script, own)
    assert states.changed() == [str(script)]


def test_modes_times_and_attributes_are_compared(tmp_path: Path) -> None:
    script, first, second, log = files(tmp_path)
    states = FileStates([str(tmp_path), str(tmp_path)])
    assert states.changed() == []
    run("chmod", "600", script)
    run("touch", first)
    time.sleep(0.02)
    try:
        os.setxattr(second, "user.note", b"seen")
    except OSError:
        second.chmod(0o600)  # a file system without attributes
    assert set(states.changed()) == {str(path) for path in (script, first, second)}
    log.read_text()
    (tmp_path / "new").write_text("new")
    assert str(log) not in states.changed(), "a file that is only read"


def test_files_that_another_process_writes_are_left_out(tmp_path: Path) -> None:
    *_, log = files(tmp_path)
    states = FileStates([str(tmp_path)])
    run("sh", "-c", f"echo more >> {log}")
    (tmp_path / "train.py").unlink()
    assert states.changed() == []


def test_shared_memory_that_a_program_writes_or_removes_is_named(in_memory: Path) -> None:
    other = in_memory.with_name(f"{in_memory.name}-other")
    other.write_text("mine, too")
    states = FileStates([])
    run("sh", "-c", f"echo more >> {in_memory}; rm {other}")
    assert set(states.changed()) == {str(in_memory), str(other)}


def test_only_so_many_files_are_compared_the_nearest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, first, second, _ = files(tmp_path)
    states = FileStates([str(tmp_path)])
    monkeypatch.setattr(metadata, "_files_in_memory", list)
    monkeypatch.setattr(metadata, "MAX_FILES", 2)
    few = FileStates([str(tmp_path)])
    for path in (script, first, second):
        run("touch", path)
    assert len(states.changed()) == 3
    assert few.changed() == [str(script)]
