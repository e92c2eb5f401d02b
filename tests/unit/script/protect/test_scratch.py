"""Scratch folders that ranks share, whatever others have put in their place, and the removal of old ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli import main
from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import UsageError
from ddpbench.script.protect import scratch

RANKS = [RankEnv(rank=rank, local_rank=rank, world_size=2, local_world_size=2, master_addr="127.0.0.1") for rank in range(2)]


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty temporary folder. Locks that a test takes end with it."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(scratch, "_locks", locks := [])
    yield folder
    for descriptor in locks:
        os.close(descriptor)


def test_process_alone_has_a_folder_of_its_own(temp: Path) -> None:
    one, other = scratch.scratch_folder(RankEnv()), scratch.scratch_folder(RankEnv())
    assert one != other
    assert sorted(temp.iterdir()) == sorted([one, other])
    assert all(scratch.is_own_folder(folder) for folder in (one, other))


def test_ranks_of_a_launcher_share_a_private_folder(temp: Path) -> None:
    one, other = (scratch.scratch_folder(rank_env) for rank_env in RANKS)
    assert one == other
    assert list(temp.iterdir()) == [one]
    assert one.stat().st_mode & 0o777 == 0o700


def plant_symlink(folder: Path, elsewhere: Path) -> None:
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


def plant_file(folder: Path, elsewhere: Path) -> None:
    folder.touch(mode=0o700)


def plant_open_folder(folder: Path, elsewhere: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def plant_folder_of_another_user(folder: Path, elsewhere: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a folder to another user")
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("plant", [plant_symlink, plant_file, plant_open_folder, plant_folder_of_another_user])
def test_what_someone_else_has_prepared_is_not_used(plant: Callable[[Path, Path], None], temp: Path, tmp_path: Path) -> None:
    expected = scratch.scratch_folder(RANKS[0])
    (expected / scratch.LOCK_FILE).unlink()
    expected.rmdir()
    plant(expected, tmp_path / "elsewhere")
    one, other = (scratch.scratch_folder(rank_env) for rank_env in RANKS)
    assert one == other != expected
    assert not one.is_symlink()
    assert one.stat().st_uid == os.getuid()
    if expected.is_dir():
        assert list(expected.iterdir()) == []


def test_names_that_are_all_taken_are_one_error(temp: Path) -> None:
    expected = str(scratch.scratch_folder(RANKS[0]))
    for number in range(scratch.MAX_NAMES):
        taken = Path(f"{expected.rpartition('-')[0]}-{number}")
        taken.mkdir(exist_ok=True)
        taken.chmod(0o755)
    with pytest.raises(UsageError, match="someone else has taken"):
        scratch.scratch_folder(RANKS[0])


def test_ranks_use_the_folder_of_their_launcher_if_it_is_private(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = scratch.new_scratch_folder()
    for rank_env in RANKS:
        monkeypatch.setenv(EnvVar.DDPBENCH_SCRATCH, str(given))
        assert scratch.scratch_folder(rank_env) == given
        assert EnvVar.DDPBENCH_SCRATCH not in os.environ, "a launcher in the script has its own"
    given.chmod(0o755)
    monkeypatch.setenv(EnvVar.DDPBENCH_SCRATCH, str(given))
    with pytest.raises(UsageError, match="not a private folder"):
        scratch.scratch_folder(RANKS[0])


HOLD_FOLDER = """
import sys, tempfile
from ddpbench.machine.rank_env import RankEnv
from ddpbench.script.protect.scratch import scratch_folder
tempfile.tempdir = sys.argv[1]
print(scratch_folder(RankEnv()), flush=True)
sys.stdin.read()
"""


def old_folder(temp: Path, name: str) -> Path:
    folder = temp / name
    (folder / "files" / "read-only").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / scratch.LOCK_FILE).touch()
    (folder / "files" / "read-only" / "model.pt").write_bytes(os.urandom(300_000))
    os.link(folder / "files" / "read-only" / "model.pt", folder / "files" / "linked.pt")
    (folder / "files" / "read-only").chmod(0o500)
    return folder


def test_old_folders_are_removed_and_nothing_else(temp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "kept").touch()
    old = [old_folder(temp, f"{scratch.PREFIX}{number}") for number in range(2)]
    (old[0] / "files" / "link").symlink_to(mine)
    (temp / f"{scratch.PREFIX}link").symlink_to(mine)
    open_to_all = temp / f"{scratch.PREFIX}open"
    open_to_all.mkdir(mode=0o755)
    other = old_folder(temp, "ddpbench-other")
    new = temp / f"{scratch.PREFIX}new"
    new.mkdir(mode=0o700)
    holder = subprocess.Popen([sys.executable, "-c", HOLD_FOLDER, str(temp)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    used = Path(holder.stdout.readline().strip())
    try:
        assert main(["env", "--clean"]) == 0
        out = capsys.readouterr().out
        assert re.fullmatch(r"removed 2 scratch folders of ended diagnoses, 6\d\d KB; 2 in use\n", out), out
        assert not any(folder.exists() for folder in old)
        assert all(path.exists() for path in (mine / "kept", open_to_all, other, new, used / scratch.LOCK_FILE))
    finally:
        holder.communicate()
    os.utime(new, (0, 0))
    assert scratch.clean_scratch_folders().removed == 2


def test_cleaning_does_not_import_torch(temp: Path, launch: Callable[..., Any]) -> None:
    old = old_folder(temp, f"{scratch.PREFIX}old")
    code = "import sys\nfrom ddpbench.cli import main\nmain(['env', '--clean'])\nprint({'torch', 'numpy'} & set(sys.modules))"
    done = launch([sys.executable, "-c", code], env={"TMPDIR": str(temp)})
    assert (done.returncode, done.stdout.splitlines()[-1], old.exists()) == (0, "set()", False), done.stderr
