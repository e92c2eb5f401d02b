"""Storage benchmark on real files and the kernel's page cache."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from ddpbench.machine import storage as module
from ddpbench.machine.page_cache import cached_bytes, evict, file_system
from ddpbench.machine.storage import IN_MEMORY_FILE_SYSTEMS, OWN_CACHE_FILE_SYSTEMS, FileReadStats, benchmark_storage, read_files
from ddpbench.record.diagnosis import Storage

COUNT, SIZE = 48, 100_000
SHM = Path("/dev/shm")


def written(folder: Path) -> list[str]:
    """Files of different sizes, so that their mean identifies the sample."""
    for index in range(COUNT):
        (folder / f"{index}.jpg").write_bytes(os.urandom(SIZE + index * index))
    return [str(folder / f"{index}.jpg") for index in range(COUNT)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder on storage; skips if temporary files are kept in memory."""
    if file_system(str(tmp_path)) in IN_MEMORY_FILE_SYSTEMS | OWN_CACHE_FILE_SYSTEMS:
        pytest.skip(f"temporary files lie on {file_system(str(tmp_path))}")
    return tmp_path


@pytest.fixture
def files(folder: Path) -> list[str]:
    return written(folder)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if not SHM.is_dir() or file_system(str(SHM)) != "tmpfs":
        pytest.skip("no tmpfs here")
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        yield Path(folder)


def test_file_system_is_that_of_the_nearest_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, linked = tmp_path / "my data", tmp_path / "link"
    data.mkdir()
    linked.symlink_to(data)
    escaped = str(data.resolve()).replace(" ", "\\040")
    mounts = tmp_path / "self" / "mounts"
    mounts.parent.mkdir()
    mounts.write_text(
        "/dev/vda / ext4 rw,relatime 0 0\n"
        f"tmpfs {escaped} tmpfs rw 0 0\n"
        f"server:/data {escaped} nfs4 rw,nosuid 0 0\n"
        f"/dev/vdb {escaped}2 xfs rw 0 0\n"
    )
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert file_system(str(data / "a.jpg")) == "nfs4"
    assert file_system(str(linked / "a.jpg")) == "nfs4"
    assert file_system("/") == "ext4"
    mounts.write_text("")
    assert file_system("/") == "-"


def test_file_is_cached_until_evicted(files: list[str]) -> None:
    content = Path(files[7]).read_bytes()
    assert cached_bytes(files[7]) == len(content), "a new file is fully cached"
    evict(files[7])
    assert cached_bytes(files[7]) == 0
    assert Path(files[7]).read_bytes() == content
    assert cached_bytes(files[7]) == len(content)


def test_empty_file_has_no_cached_bytes(folder: Path) -> None:
    (folder / "empty").touch()
    evict(str(folder / "empty"))
    assert cached_bytes(str(folder / "empty")) == 0


def test_new_files_are_read_warm_and_cold(folder: Path, files: list[str]) -> None:
    before = [Path(file).read_bytes() for file in files]
    found = benchmark_storage(str(folder), files, threads=4, budget_s=20)
    assert (found.path, found.num_files, found.cached_fraction) == (str(folder), COUNT, 1.0)
    assert found.bytes_per_file == pytest.approx(sum(map(len, before)) / COUNT)
    assert found.file_system == file_system(str(folder))
    assert found.warm_files_per_s
    assert found.cold_files_per_s
    assert found.no_cold_rate_reason is None
    assert found.verified or found.file_system.startswith("fuse"), "the kernel read the files from the device"
    assert all(cached_bytes(file) == len(content) for file, content in zip(files, before, strict=True)), "the cached state is restored"
    assert [Path(file).read_bytes() for file in files] == before


def test_cached_state_of_files_is_restored(folder: Path, files: list[str]) -> None:
    for file in files[::2]:
        evict(file)
    found = benchmark_storage(str(folder), files, threads=2, budget_s=20)
    assert found.cached_fraction == pytest.approx(0.5, abs=0.02)
    assert found.cold_files_per_s
    assert [cached_bytes(file) > 0 for file in files] == [index % 2 == 1 for index in range(COUNT)]


def test_in_memory_file_system_has_no_cold_rate(in_memory: Path) -> None:
    found = benchmark_storage(str(in_memory), written(in_memory), threads=2, budget_s=20)
    assert (found.file_system, found.cached_fraction, found.cold_files_per_s, found.verified) == ("tmpfs", 1.0, None, False)
    assert found.no_cold_rate_reason == "in_memory"
    assert found.warm_files_per_s


def test_mapped_files_have_no_cold_rate(folder: Path, files: list[str]) -> None:
    held = [_mapped(file) for file in files]
    assert sum(sum(part[:: mmap.PAGESIZE]) for part in held) > 0, "every page was touched"
    found = benchmark_storage(str(folder), files, threads=2, budget_s=20)
    assert found.cold_files_per_s is None
    assert found.no_cold_rate_reason in ("not_evicted", "unknown_residency")
    assert not found.verified
    assert found.warm_files_per_s
    for part in held:
        part.close()


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def test_residency_is_unknown_but_cold_reads_verified_without_ownership() -> None:
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    with tempfile.TemporaryDirectory() as private:
        folder = Path(private)
        folder.chmod(0o755)
        if file_system(private) in IN_MEMORY_FILE_SYSTEMS | OWN_CACHE_FILE_SYSTEMS:
            pytest.skip(f"temporary files lie on {file_system(private)}")
        files = written(folder)
        script = (
            "import os, sys, msgspec\nfrom ddpbench.machine.storage import benchmark_storage\nos.setresuid(65534, 65534, 65534)\n"
            "import ctypes; ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"  # PR_SET_DUMPABLE: this user owns /proc/self again
            "print(msgspec.json.encode(benchmark_storage(sys.argv[1], sys.argv[2:], 2, 20)).decode())"
        )
        done = subprocess.run([sys.executable, "-c", script, private, *files], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=Storage)
    assert found.cached_fraction is None, "the kernel reports everything as cached to other users"
    assert found.cold_files_per_s
    assert found.verified


def test_sample_is_deterministic(folder: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = benchmark_storage(str(folder), files, threads=1, budget_s=20)
    monkeypatch.setattr(module, "MAX_SAMPLE_FILES", 5)
    once, again = (benchmark_storage(str(folder), files, threads=1, budget_s=20) for _ in range(2))
    assert once.bytes_per_file == again.bytes_per_file != whole.bytes_per_file
    assert once.num_files == COUNT


def test_no_time_gives_no_rates(folder: Path, files: list[str]) -> None:
    found = benchmark_storage(str(folder), files, threads=2, budget_s=0)
    assert (found.warm_files_per_s, found.cold_files_per_s) == (None, None)
    assert found.no_cold_rate_reason == "no_time"


def test_missing_files_are_skipped(folder: Path, files: list[str]) -> None:
    for file in files[:3]:
        Path(file).unlink()
    found = benchmark_storage(str(folder), files, threads=0, budget_s=20)
    assert found.bytes_per_file == pytest.approx(sum(os.path.getsize(file) for file in files[3:]) / (COUNT - 3))
    assert found.cold_files_per_s
    gone = benchmark_storage(str(folder), files[:3], threads=1, budget_s=20)
    assert (gone.bytes_per_file, gone.cached_fraction, gone.warm_files_per_s, gone.cold_files_per_s) == (0.0, None, None, None)
    assert gone.no_cold_rate_reason == "unreadable"


def test_files_evicted_during_the_benchmark_have_no_warm_rate(folder: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def short_of_memory(portion: Sequence[str], *how: Any) -> FileReadStats:
        for file in portion:
            evict(file)
        return read_files(portion, *how)

    monkeypatch.setattr(module, "read_files", short_of_memory)
    found = benchmark_storage(str(folder), files, threads=2, budget_s=20)
    if not found.verified:
        pytest.skip(f"on {found.file_system} the kernel does not count what it fetches")
    assert found.warm_files_per_s is None
    assert found.cold_files_per_s
