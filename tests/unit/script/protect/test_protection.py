"""Scripts run bare and protected: they print the same, and only the bare ones change the user's files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path

import numpy
import pytest
from launches import SUPPORT
from saving_scripts import CUDA_SCRIPT, HEADER, LIBRARY_SCRIPTS, SCRIPTS, TORCH_SCRIPTS, write_user_files

from ddpbench.report.messages.protected_files import copy_text
from ddpbench.script.protect.overlay import Overlay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

DEFENCES = ["landlock", "python"]
Snapshot = dict[str, tuple[bytes, int, int]]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder with a short path, which sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="ddpbench-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def user_folder(parent: Path) -> Path:
    folder = parent / "user"
    folder.mkdir(parents=True)
    write_user_files(folder)
    return folder


def snapshot(folder: Path) -> Snapshot:
    """Content or target, mode and modification time of everything in a folder, by name."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b"/"
        found[str(path.relative_to(folder))] = content, status.st_mode, status.st_mtime_ns
    return found


def changed_paths(before: Snapshot, after: Snapshot) -> list[str]:
    """Files that are new, changed or gone; a folder that is gone stands for its files."""
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    gone = {name for name in before if name not in after}
    return sorted(name for name in changed if str(Path(name).parent) not in gone and (name in gone or after[name][0] != b"/"))


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)


def run_protected(script: Path, folder: Path, scratch: Path, defence: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SUPPORT / "protected.py"), str(scratch), str(folder.parent / "report.txt"), defence, str(script)]
    return run(words, folder, **environment)


def write_script(folder: Path, code: str) -> Path:
    path = folder / "script.py"
    path.write_text(HEADER + code)
    return path


@pytest.mark.parametrize("defence", DEFENCES)
@pytest.mark.parametrize("name", [*SCRIPTS, *TORCH_SCRIPTS, *LIBRARY_SCRIPTS])
def test_script_reads_what_it_wrote_and_the_files_are_untouched(name: str, defence: str, scratch: Path, tmp_path: Path) -> None:
    if name in LIBRARY_SCRIPTS:
        pytest.importorskip(name)
    script = write_script(tmp_path, (SCRIPTS | TORCH_SCRIPTS | LIBRARY_SCRIPTS)[name])
    bare, user = user_folder(tmp_path / "bare"), user_folder(tmp_path / "protected")
    if name == "pandas":
        for folder in (bare, user):
            (folder / "table").mkdir()
            sys.modules[name].DataFrame({"a": [7]}).to_parquet(folder / "table" / "part-0.parquet")
    before, bare_before = snapshot(user), snapshot(bare)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(run, [sys.executable, str(script)], bare)
        done, expected = run_protected(script, user, scratch, defence), beside.result()
    assert expected.returncode == 0, expected.stderr
    assert (done.stdout, done.returncode, "refused" in done.stderr) == (expected.stdout, 0, False), done.stderr
    assert snapshot(user) == before
    changed = [os.path.relpath(path, user) for path in Overlay(str(scratch)).changed()]
    assert changed == changed_paths(bare_before, snapshot(bare))


def refused(code: str, folder: Path, scratch: Path, defence: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """The refusals of a script, which leaves the user's files untouched."""
    script, user = write_script(folder, code), user_folder(folder / "protected")
    before = snapshot(user)
    done = run_protected(script, user, scratch, defence)
    assert snapshot(user) == before
    return [line.removeprefix("refused ") for line in done.stderr.splitlines() if line.startswith("refused ")], done


READ_ONLY_IN_FACT = """
import mmap, sqlite3, numpy
array, copy = numpy.memmap("data.bin", dtype="u1"), numpy.array(numpy.memmap("data.bin", dtype="u1", mode="r"))
with open("data.bin", "r+b") as update, open("data.bin", "a") as log, open("data.bin", "a+") as both:
    with mmap.mmap(update.fileno(), 0) as pages:
        print(bool((array == copy).all()), update.read(2), log.tell(), both.seek(3), both.read(1) == chr(3), pages[7])
database = sqlite3.connect("data.db")
with database:
    print(database.execute("select count(*) from samples").fetchone())
child = os.fork()
if not child:
    print(int(array[99]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(int(numpy.load("array.npy", mmap_mode="r+").sum()))
"""


@pytest.mark.parametrize("defence", DEFENCES)
def test_what_is_opened_for_update_and_only_read_is_not_copied(defence: str, scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, READ_ONLY_IN_FACT), user_folder(tmp_path / "protected")
    numpy.save(user / "array.npy", numpy.ones(5000))
    before = snapshot(user)
    done = run_protected(script, user, scratch, defence)
    assert done.stdout.splitlines() == ["True b'\\x00\\x01' 20000 3 True 7", "(2000,)", "99", "5000"], done.stderr
    assert Overlay(str(scratch)).changed() == []
    assert snapshot(user) == before


OPEN_FILES = """
import mmap, sqlite3, numpy
from ddpbench.script.diagnose.open_files import find_open_files
class Data:
    pass
data = Data()
data.database, data.update, data.raw = sqlite3.connect("data.db"), open("data.bin", "r+b"), open("data.bin", "r+b", buffering=0)
data.read, data.written = numpy.memmap("data.bin", dtype="u1"), numpy.memmap("data.bin", dtype="u1")
data.written[7] = 1
data.pages, data.written_pages = mmap.mmap(data.update.fileno(), 0), mmap.mmap(data.raw.fileno(), 0)
data.written_pages[7] = 1
print(*sorted(each.name.removeprefix("Data.") for each in find_open_files(data).files))
"""


@pytest.mark.parametrize("defence", DEFENCES)
def test_open_files_are_found_as_without_protection(defence: str, scratch: Path, tmp_path: Path) -> None:
    """But for memory maps for update that are only read: nothing that one process does in them is seen by another."""
    script, user = write_script(tmp_path, OPEN_FILES), user_folder(tmp_path / "protected")
    done = run_protected(script, user, scratch, defence)
    assert done.stdout.split() == ["database", "raw", "update", "written", "written_pages"], done.stderr


BUSY_DATABASE = """
import sqlite3
import stat
database = sqlite3.connect("data.db")
print(database.execute("select count(*) from samples").fetchone())
database.execute("insert into samples values (1)")
database.commit()
print(sqlite3.connect("data.db").execute("select count(*) from samples").fetchone())
"""


def test_database_with_a_log_of_changes_is_copied_with_it(scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, BUSY_DATABASE), user_folder(tmp_path / "protected")
    writer = sqlite3.connect(user / "data.db")
    writer.execute("pragma journal_mode=wal")
    writer.execute("insert into samples values (-1)")
    writer.commit()
    before = snapshot(user)
    done = run_protected(script, user, scratch, "landlock")
    assert (user / "data.db-wal").stat().st_size
    assert (done.stdout.splitlines(), snapshot(user)) == (["(2001,)", "(2002,)"], before), done.stderr
    writer.close()


LMDB_READER = """
import lmdb
if not os.fork():
    print(lmdb.open("env").begin().get(b"key"), flush=True)
    os._exit(0)
os.wait()
print(isinstance(env := lmdb.open("env"), lmdb.Environment))
with env.begin() as txn, lmdb.Transaction(env) as other:
    print(txn.get(b"key"), other.stat()["entries"], dict(txn.cursor()))
named = lmdb.open("named", max_dbs=1, map_size=1 << 20)
with named.begin(named.open_db(b"samples")) as txn:
    print(txn.get(b"0"))
"""

LMDB_WRITER = """
import lmdb
with lmdb.open("new", subdir=False, lock=False) as new, new.begin(write=True) as txn:
    txn.put(b"key", b"made")
print(lmdb.open("new", subdir=False, readonly=True).begin().get(b"key"))
env, reader = lmdb.open("env"), lmdb.open("named")
before = env.begin()
with env.begin(write=True) as txn:
    txn.put(b"key", b"written")
print(before.get(b"key"), env.begin().get(b"key"))
env.close()
print(lmdb.open("env", readonly=True).begin().get(b"key"))
named = lmdb.open("other", max_dbs=1)
with named.begin(named.open_db(b"samples"), write=True) as txn:
    txn.put(b"1", b"one")
with named.begin(named.open_db(b"samples")) as txn:
    print(txn.get(b"1"))
"""

LMDB_WRITER_OF_A_NAMED_DATABASE = """
import lmdb
env = lmdb.open("named", max_dbs=1)
samples = env.open_db(b"samples")
with env.begin(write=True) as txn:
    txn.put(b"0", b"new", db=samples)
"""


def fill_lmdb(user: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(user / "env")) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    with lmdb.open(str(user / "named"), max_dbs=1) as env, env.begin(env.open_db(b"samples"), write=True) as txn:
        txn.put(b"0", b"zero")
    for name in ("env", "named"):
        (user / name / "lock.mdb").unlink()


@pytest.mark.parametrize("defence", DEFENCES)
def test_lmdb_environment_that_is_only_read_is_not_copied(defence: str, scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, LMDB_READER), user_folder(tmp_path / "protected")
    fill_lmdb(user)
    before = snapshot(user)
    done = run_protected(script, user, scratch, defence)
    assert done.stdout.splitlines() == ["b'value'", "True", "b'value' 1 {b'key': b'value'}", "b'zero'"], done.stderr
    assert (snapshot(user), Overlay(str(scratch)).changed()) == (before, [])


@pytest.mark.parametrize("defence", DEFENCES)
def test_lmdb_environment_that_is_written_is_copied(defence: str, scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, LMDB_WRITER), user_folder(tmp_path / "protected")
    fill_lmdb(user)
    before = snapshot(user)
    done = run_protected(script, user, scratch, defence)
    assert done.stdout.splitlines() == ["b'made'", "b'value' b'written'", "b'written'", "b'one'"], done.stderr
    assert snapshot(user) == before


def test_lmdb_environment_whose_databases_are_in_use_is_refused_a_write(scratch: Path, tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    user = tmp_path / "protected" / "user"
    user.mkdir(parents=True)
    fill_lmdb(user)
    before = snapshot(user)
    done = run_protected(write_script(tmp_path, LMDB_WRITER_OF_A_NAMED_DATABASE), user, scratch, "python")
    assert ("refused write named/data.mdb" in done.stderr.splitlines(), snapshot(user)) == (True, before), done.stderr


DENIALS = {
    "a library": ("pyarrow.fs", "from pyarrow._fs import LocalFileSystem\nLocalFileSystem().open_output_stream('x.bin')", "write x.bin"),
    "a folder of a library": ("pyarrow.fs", "from pyarrow._fs import LocalFileSystem\nLocalFileSystem().create_dir('made')", "write made"),
    "what a library does not find": (
        "pyarrow.fs",
        "from pyarrow._fs import LocalFileSystem\nPath('new').write_text('new')\nLocalFileSystem().open_input_file('new')",
        "find new",
    ),
    "what nothing finds": ("pyarrow.fs", "from pyarrow._fs import LocalFileSystem\nLocalFileSystem().open_input_file('gone')", None),
    "an error in a worker": (
        "torch",
        """
import ctypes, torch
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        if ctypes.CDLL(None, use_errno=True).open(b"log.txt", os.O_WRONLY) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "log.txt")
list(torch.utils.data.DataLoader(Samples(), num_workers=1))
""",
        "write log.txt",
    ),
    "what is refused anyway": ("socket", "import socket\nsocket.socket(socket.AF_UNIX).bind('runs/socket')", "write runs/socket"),
    "a program that is none": ("subprocess", "import subprocess\nsubprocess.run(['./log.txt'])", None),
    "a file that does not exist": ("os", "open('gone/log.txt', 'w')", None),
    "an error of the script": ("os", "raise PermissionError(13, 'Permission denied', '/proc/sysrq-trigger')", None),
}


@pytest.mark.parametrize("case", DENIALS)
def test_error_that_the_protection_has_caused_is_recognized(case: str, scratch: Path, tmp_path: Path) -> None:
    module, code, name = DENIALS[case]
    pytest.importorskip(module)
    _, done = refused(code, tmp_path, scratch, "landlock")
    if "landlock False" in (tmp_path / "protected" / "report.txt").read_text():
        pytest.skip("a kernel without Landlock")
    denied = [line.removeprefix("denied ") for line in done.stderr.splitlines() if line.startswith("denied ")]
    assert (denied, done.returncode) == ([name] if name else [], 1), done.stderr


LARGE_COPIES = """
for _ in range(2):
    with open("large.bin", "r+b") as file:
        file.write(b"new")
if os.environ.get("LIBRARY"):
    import h5py
    with h5py.File("large.h5", "a") as file:
        print(file["x"][3])
"""


@pytest.mark.parametrize("library", ["", "h5py"])
def test_copy_of_a_large_file_is_named_once_with_its_size(library: str, scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, LARGE_COPIES), user_folder(tmp_path / "protected")
    (user / "large.bin").write_bytes(bytes(5_200_000))
    expected = [f"ddpbench: note: {copy_text(str(user / 'large.bin'), 5_200_000)}"]
    if library:
        with pytest.importorskip("h5py").File(user / "large.h5", "w") as file:
            file["x"] = numpy.ones(500_000)
        expected.append(f"ddpbench: note: {copy_text(str(user / 'large.h5'), (user / 'large.h5').stat().st_size)}")
    before = snapshot(user)
    done = run_protected(script, user, scratch, "landlock", LIBRARY=library)
    assert (done.stderr.splitlines(), done.stdout, snapshot(user)) == (expected, "1.0\n" if library else "", before)


UNREDIRECTED = """
import posix, sqlite3, subprocess
def attempt(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except PermissionError as problem:
        print(type(problem).__name__, problem.filename)
folder = posix.open("runs", os.O_RDONLY)
attempt(posix.open, "best.pt", os.O_WRONLY)
attempt(posix.open, "new.pt", os.O_CREAT | os.O_WRONLY)
attempt(posix.open, "1.pt", os.O_RDWR, dir_fd=folder)
attempt(posix.remove, "1.pt", dir_fd=folder)
attempt(posix.rename, "best.pt", "worst.pt")
attempt(posix.mkdir, "made")
attempt(posix.utime, posix.open("log.txt", os.O_RDONLY))
attempt(posix.truncate, "log.txt", 0)
attempt(sqlite3.connect, "file:log.txt", uri=True)
attempt(posix.open, "/dev/null", os.O_WRONLY)
attempt(posix.open, os.environ["TMPDIR"] + "/x", os.O_CREAT | os.O_WRONLY)
"""


@pytest.mark.parametrize("defence", DEFENCES)
def test_what_is_not_redirected_is_refused_by_name_before_it_happens(defence: str, scratch: Path, tmp_path: Path) -> None:
    refusals, done = refused(UNREDIRECTED, tmp_path, scratch, defence)
    runs = tmp_path / "protected" / "user" / "runs"
    expected = [
        *("open best.pt", "open new.pt", "open 1.pt", f"remove {runs}/1.pt", "rename best.pt", "mkdir made"),
        *(f"utime {runs.parent}/log.txt", "truncate log.txt", "connect log.txt"),
    ]
    assert refusals == expected, done.stderr
    assert done.stdout.splitlines() == [f"RefusedWrite {refusal.partition(' ')[2]}" for refusal in expected]


IN_MEMORY = """
import multiprocessing
mine = Path(os.environ["MINE"])
mine.write_text("new")
print(mine.read_text(), list(multiprocessing.Array("i", [1, 2])))
mine.unlink()
print(mine.exists())
"""


@pytest.mark.parametrize("defence", DEFENCES)
def test_files_in_shared_memory_are_not_changed(defence: str, scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, IN_MEMORY), user_folder(tmp_path / "protected")
    with tempfile.NamedTemporaryFile("w+", dir="/dev/shm") as mine:
        mine.write("mine")
        mine.flush()
        done = run_protected(script, user, scratch, defence, MINE=mine.name)
        assert (done.stdout, done.returncode) == ("new [1, 2]\nFalse\n", 0), done.stderr
        assert Path(mine.name).read_text() == "mine"


SEGMENTS = """
import multiprocessing
from multiprocessing import shared_memory

def write(name):
    segment = shared_memory.SharedMemory(name=name)
    segment.buf[1] += 1
    segment.close()

if __name__ == "__main__":
    name = os.environ["SEGMENT"]
    segment = shared_memory.SharedMemory(name=name)
    print(bytes(segment.buf[:3]))
    segment.buf[0] = 90
    again = shared_memory.SharedMemory(name=name)
    own = shared_memory.SharedMemory(create=True, size=10)
    for method in ("fork", "spawn"):
        for each in (name, own.name):
            process = multiprocessing.get_context(method).Process(target=write, args=(each,))
            process.start()
            process.join()
    print(bytes(again.buf[:3]), bytes(segment.buf[:3]), bytes(own.buf[:3]))
    again.unlink()
    try:
        shared_memory.SharedMemory(name=name)
    except FileNotFoundError:
        new = shared_memory.SharedMemory(name=name, create=True, size=4096)
        print(bytes(new.buf[:3]), shared_memory.SharedMemory(name=name).size)
        new.unlink()
    own.unlink()
"""


@pytest.mark.parametrize("defence", DEFENCES)
def test_shared_memory_of_another_process_is_read_and_not_changed(defence: str, scratch: Path, tmp_path: Path) -> None:
    script, user = write_script(tmp_path, SEGMENTS), user_folder(tmp_path / "protected")
    segment = shared_memory.SharedMemory(create=True, size=4096)
    try:
        segment.buf[:3] = b"abc"
        time.sleep(0.05)  # the clock of files is coarse
        done = run_protected(script, user, scratch, defence, SEGMENT=segment.name)
        expected = ["b'abc'", "b'Zdc' b'Zdc' b'\\x00\\x02\\x00'", "b'\\x00\\x00\\x00' 4096"]
        assert done.stdout.splitlines() == expected, done.stderr
        assert (done.returncode, bytes(segment.buf[:3])) == (0, b"abc"), done.stderr
        assert Path(f"/dev/shm/{segment.name}").exists()
    finally:
        segment.close()
        segment.unlink()


PROGRAMS = """
import subprocess
Path("checkpoint.pt").write_text("new")
print(subprocess.call(["cp", "log.txt", "best.pt"]), os.system("rm -rf runs") != 0, os.path.exists("runs/1.pt"))
"""


def test_programs_cannot_write_with_landlock(scratch: Path, tmp_path: Path) -> None:
    refusals, done = refused(PROGRAMS, tmp_path, scratch, "landlock")
    if "landlock False" in (tmp_path / "protected" / "report.txt").read_text():
        pytest.skip("a kernel without Landlock")
    assert (refusals, done.stdout) == ([], "1 True True\n"), done.stderr


def test_programs_are_refused_without_landlock(scratch: Path, tmp_path: Path) -> None:
    refusals, done = refused(PROGRAMS, tmp_path, scratch, "python")
    assert refusals == ["Popen cp log.txt best.pt"]
    assert done.returncode == 1
    assert "RefusedWrite" in done.stderr


NATIVE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name in (b"best.pt", b"new.pt", os.fsencode(os.environ["TMPDIR"]) + b"/native"):
    print(libc.open(name, os.O_WRONLY | os.O_CREAT, 0o600) >= 0)
print(libc.unlink(b"best.pt"), libc.rename(b"runs/1.pt", b"runs/9.pt"))
"""


def test_native_code_cannot_write_with_landlock(scratch: Path, tmp_path: Path) -> None:
    refusals, done = refused(NATIVE, tmp_path, scratch, "landlock")
    if "landlock False" in (tmp_path / "protected" / "report.txt").read_text():
        pytest.skip("a kernel without Landlock")
    assert (refusals, done.stdout.split()) == ([], ["False", "False", "True", "-1", "-1"]), done.stderr


def test_refusal_in_a_spawned_worker_reaches_the_script(scratch: Path, tmp_path: Path) -> None:
    code = """
import multiprocessing, posix
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(posix.remove, ["best.pt"])
"""
    _, done = refused(code, tmp_path, scratch, "python")
    assert "RefusedWrite" in done.stderr
    assert done.stderr.splitlines()[-1] == "denied write best.pt", "the worker cannot report it itself"


def test_caches_and_temporary_files_are_written_and_staged_files_are_found(scratch: Path, tmp_path: Path) -> None:
    staged, cache, volume = tmp_path / "staged", tmp_path / "cache", tmp_path / "volume"
    for folder in (staged, cache, volume / "hub"):
        folder.mkdir(parents=True)
    (volume / "last-run").write_text("mine")
    (staged / "data.bin").write_text("staged")
    code = """
print(Path(os.environ["TMPDIR"], "data.bin").read_text(), tempfile.gettempdir() == os.environ["TMPDIR"])
Path(os.environ["TMPDIR"], "data.bin").write_text("changed")
Path(os.environ["XDG_CACHE_HOME"], "compiled").write_text("kernel")
Path(os.environ["HF_HOME"], "hub", "model").write_text("weights")
Path(os.environ["HF_HOME"], "last-run").write_text("overwritten")
Path("best.pt").write_text("new")
print(Path(os.environ["TMPDIR"], "data.bin").read_text(), len(tempfile.mkdtemp()) < 60)
"""
    script, user = write_script(tmp_path, code), user_folder(tmp_path / "protected")
    before = snapshot(user)
    folders = {"TMPDIR": staged, "XDG_CACHE_HOME": cache, "HF_HOME": volume, "HF_HUB_CACHE": user.parent}
    done = run_protected(script, user, scratch, "landlock", **{name: str(folder) for name, folder in folders.items()})
    assert snapshot(user) == before, "a cache that has the script's files in it is none"
    assert done.stdout.splitlines() == ["staged True", "changed True"], done.stderr
    assert (staged / "data.bin").read_text() == "staged"
    assert (cache / "compiled").read_text() == "kernel"
    assert ((volume / "hub" / "model").read_text(), (volume / "last-run").read_text()) == ("weights", "mine")


def test_sockets_of_multiprocessing_have_short_names(scratch: Path, tmp_path: Path) -> None:
    code = """
import multiprocessing.connection
import multiprocessing.util
folder = multiprocessing.util.get_temp_dir()
with multiprocessing.connection.Listener() as listener:
    with multiprocessing.connection.Client(listener.address):
        print(folder, len(listener.address) < 107)
"""
    script, user, deep = write_script(tmp_path, code), user_folder(tmp_path / "protected"), scratch / ("d" * 90)
    deep.mkdir()
    done = run_protected(script, user, deep, "landlock")
    assert done.stdout, done.stderr
    folder, is_short = done.stdout.split()
    assert is_short == "True"
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


TRACKERS = {
    "wandb.py": "def init(project=None, mode=None):\n    print(project, mode)\n",
    "mlflow.py": """
class MlflowClient:
    def __init__(self, tracking_uri=None):
        print("client of", tracking_uri)

def set_tracking_uri(uri):
    raise AssertionError(uri)
""",
    "huggingface_hub/__init__.py": "",
    "huggingface_hub/hf_api.py": "class HfApi:\n    def create_commit(self, repo_id):\n        raise AssertionError\n",
}


def test_script_cannot_choose_the_server_of_a_tracker(scratch: Path, tmp_path: Path) -> None:
    for name, code in TRACKERS.items():
        (tmp_path / "modules" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "modules" / name).write_text(code)
    code = f"""
import sys
sys.path.append({str(tmp_path / "modules")!r})
import mlflow, wandb
wandb.init("mine", mode="online")
mlflow.set_tracking_uri("http://server")
mlflow.MlflowClient("http://server")
print(os.environ["MLFLOW_TRACKING_URI"])
from huggingface_hub.hf_api import HfApi
HfApi().create_commit("me/model")
"""
    refusals, done = refused(code, tmp_path, scratch, "python")
    assert done.stdout.splitlines() == ["mine disabled", "client of None", f"file://{scratch}/mlruns"], done.stderr
    assert refusals == ["upload me/model"]


@pytest.mark.cuda
@pytest.mark.parametrize("defence", DEFENCES)
def test_cuda_nccl_and_compiled_models_work(defence: str, scratch: Path, tmp_path: Path, free_port: int) -> None:
    script, user = write_script(tmp_path, CUDA_SCRIPT), user_folder(tmp_path / "protected")
    before = snapshot(user)
    done = run_protected(script, user, scratch, defence, FREE_PORT=str(free_port))
    assert (done.stdout, done.returncode) == ("torch.Size([8, 8])\n", 0), done.stderr
    assert snapshot(user) == before
