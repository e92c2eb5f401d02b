"""Atomic file writes, including on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import limited_file_size

from ddpbench.record.io import atomic_write

LARGE = b"x" * 4096


def test_write_on_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("mine")
    with limited_file_size(), pytest.raises(OSError, match="File too large"):
        atomic_write(target, LARGE)
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target], "no temporary file is left"


def test_new_file_on_a_full_disk_is_removed(tmp_path: Path) -> None:
    with limited_file_size(), pytest.raises(OSError, match="File too large"):
        atomic_write(tmp_path / "run.json", LARGE, overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_existing_file_is_not_overwritten_unless_allowed(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    atomic_write(target, b"first", overwrite=False)
    with pytest.raises(FileExistsError):
        atomic_write(target, b"second", overwrite=False)
    assert target.read_bytes() == b"first"
    atomic_write(target, b"third")
    assert target.read_bytes() == b"third"


def test_symlink_is_kept_and_its_target_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "run.json", tmp_path / "latest.json"
    target.write_text("old")
    link.symlink_to(target.name)
    atomic_write(link, b"new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")


def test_full_device_is_an_error_and_is_not_replaced() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        atomic_write(Path("/dev/full"), LARGE)
    assert Path("/dev/full").is_char_device()


def test_pipe_is_written_to() -> None:
    reader, writer = os.pipe()
    atomic_write(Path(f"/dev/fd/{writer}"), b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)


def test_file_behind_stdout_is_appended_to(tmp_path: Path) -> None:
    """Replacing it would lose the text printed before, and its reader would keep the old file open."""
    script = "from pathlib import Path; from ddpbench.record.io import atomic_write\n"
    script += "print('report', flush=True); atomic_write(Path('/dev/stdout'), b'record')"
    printed = tmp_path / "printed"
    with printed.open("wb") as stdout:
        subprocess.run([sys.executable, "-c", script], stdout=stdout, check=True, timeout=60)
        assert os.path.samestat(os.fstat(stdout.fileno()), printed.stat())
    assert printed.read_text() == "report\nrecord"
