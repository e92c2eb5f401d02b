"""Scripts that save in every way, by name. They run in the folder of ``write_user_files``, and print what they read back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def write_user_files(folder: Path) -> None:
    """What a user has from earlier runs."""
    for name in ("checkpoint.pt", "best.pt", "log.txt", "runs/1.pt", "runs/2.pt", "runs/3.pt", "old_run/nested/weights.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"last week's {name}\n")
    (folder / "latest.pt").symlink_to("runs/3.pt")
    (folder / "log.txt").chmod(0o640)
    (folder / "data.bin").write_bytes(bytes(range(100)) * 200)  # larger than a file that is copied when it is opened
    with closing(sqlite3.connect(folder / "data.db")) as database, database:
        database.execute("create table samples (x)")
        database.executemany("insert into samples values (?)", ((number,) for number in range(2000)))


SCRIPTS = {
    "every step": """
for step in range(3):
    with open("checkpoint.pt", "w") as file:
        file.write(f"step {step}")
    print(open("checkpoint.pt").read(), os.path.getsize("checkpoint.pt"))
""",
    "finally": """
try:
    raise KeyError
except KeyError:
    pass
finally:
    Path("checkpoint.pt").write_text("end")
print(Path("checkpoint.pt").read_text())
""",
    "at exit": """
import atexit
atexit.register(lambda: print(Path("best.pt").write_text("saved at exit"), Path("best.pt").read_text()))
""",
    "into a file that was opened at the start": """
metrics = open("metrics.csv", "w", newline="")
print(open("log.txt").read())
import csv
rows = csv.writer(metrics)
rows.writerow(["step", "loss"])
metrics.flush()
print(os.path.getsize("metrics.csv"), metrics.name)
rows.writerow([1, 0.5])
metrics.close()
print(open("metrics.csv").read())
""",
    "appended log": """
import logging, stat
logging.basicConfig(filename="log.txt", level=logging.INFO, format="%(message)s")
logging.info("step 1")
with open("log.txt", "a") as log:
    log.write("step 2\\n")
with open("log.txt", "r+b") as log:
    log.write(b"LAST")
print(open("log.txt").read(), oct(stat.S_IMODE(os.stat("log.txt").st_mode)))
""",
    "copy after saving": """
Path("checkpoint.pt").write_text("new")
shutil.copyfile("checkpoint.pt", "best.pt")
shutil.copy2("best.pt", "runs/best.pt")
print(Path("best.pt").read_text(), Path("runs/best.pt").read_text(), os.path.samefile("best.pt", "checkpoint.pt"))
""",
    "rotated checkpoints": """
import glob
for number in (4, 5):
    Path(f"runs/{number}.pt").write_text(str(number))
    oldest = sorted(glob.glob("runs/*.pt"))[0]
    os.remove(oldest)
    print(oldest, sorted(os.listdir("runs")), os.path.exists(oldest))
os.remove("latest.pt")
os.symlink("runs/5.pt", "latest.pt")
print(Path("latest.pt").read_text(), os.readlink("latest.pt"), Path("latest.pt").is_symlink())
""",
    "replaced by a temporary file": """
import tempfile
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
    file.write("whole")
os.replace(file.name, "checkpoint.pt")
Path("best.tmp").write_text("best")
Path("best.tmp").rename("best.pt")
os.rename("runs/1.pt", "runs/first.pt")
os.rename("old_run", "older_run")
print(Path("checkpoint.pt").read_text(), Path("best.pt").read_text(), Path("runs/first.pt").read_text(), sorted(os.listdir(".")))
print(Path("older_run/nested/weights.pt").read_text(), os.path.isdir("old_run"))
""",
    "folders": """
shutil.rmtree("runs")
print(os.path.exists("runs/2.pt"), os.path.isdir("runs"))
os.makedirs("runs/new/deep", exist_ok=True)
os.makedirs("runs/new/deep", exist_ok=True)
Path("runs/new/deep/1.pt").write_text("1")
print(sorted(str(path) for path in Path("runs").rglob("*")), [folder for folder, _, _ in os.walk("runs")])
shutil.copytree("runs", "copied")
shutil.move("copied", "old_run")
print(Path("old_run/copied/new/deep/1.pt").read_text())
os.chdir("runs/new")
print(os.path.relpath(os.getcwd(), "../.."), os.listdir(), Path("../../log.txt").read_text())
Path("here.txt").write_text("h")
print(sorted(entry.name for entry in os.scandir() if entry.is_file()), Path("here.txt").resolve().parent.name)
os.chdir("../..")
with tempfile.NamedTemporaryFile(dir="old_run") as file:
    print(os.path.exists(file.name))
print(os.path.exists(file.name), len(list(Path("old_run").glob("**/*.pt"))))
with tempfile.TemporaryDirectory(dir="old_run") as folder:
    Path(folder, "x").touch()
    print(len(os.listdir(folder)))
""",
    "relative to a descriptor": """
folder = os.open("runs", os.O_RDONLY)
file = os.open("4.pt", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
os.write(file, b"four")
os.close(file)
os.unlink("1.pt", dir_fd=folder)
os.rename("2.pt", "two.pt", src_dir_fd=folder, dst_dir_fd=folder)
print(sorted(os.listdir(folder)), os.stat("4.pt", dir_fd=folder).st_size, os.access("1.pt", os.F_OK, dir_fd=folder))
""",
    "arrays": """
import io, json, numpy
numpy.save("a.npy", numpy.arange(3))
numpy.arange(3).tofile("a.bin")
with io.FileIO("b.bin", "w") as file:
    file.write(b"raw")
    print(file.name, isinstance(open("a.bin", "rb", buffering=0), io.FileIO))
mapped = numpy.memmap("mapped.bin", dtype="u1", mode="w+", shape=(4,))
mapped[:] = 7
mapped.flush()
json.dump({"a": 1}, open("a.json", "w"))
print(numpy.load("a.npy", mmap_mode="r"), numpy.fromfile("a.bin", int), open("mapped.bin", "rb").read(), json.load(open("a.json")))
""",
    "archives and databases": """
import bz2, gzip, lzma, sqlite3, tarfile, zipfile
for module in (bz2, gzip, lzma):
    with module.open("packed", "wt") as file:
        file.write("text")
    print(module.open("packed", "rt").read())
shutil.make_archive("archive", "zip", "runs")
with tarfile.open("archive.tar", "w") as archive:
    archive.add("log.txt")
print(sorted(zipfile.ZipFile("archive.zip").namelist()), tarfile.open("archive.tar").getnames())
with sqlite3.connect("study.db") as database:
    database.execute("create table trials (loss)")
    database.execute("insert into trials values (1)")
print(sqlite3.connect("study.db").execute("select * from trials").fetchall())
print(sqlite3.connect("file:study.db?mode=memory", uri=True).execute("select 1").fetchall())
""",
    "attributes": """
import stat
os.chmod("best.pt", 0o600)
os.utime("best.pt", (1, 1))
os.truncate("log.txt", 4)
os.link("best.pt", "linked.pt")
Path("linked.pt").write_text("both")
print(os.stat("best.pt").st_nlink, oct(stat.S_IMODE(os.stat("best.pt").st_mode)), Path("best.pt").read_text(), Path("log.txt").read_text())
os.chmod("runs", stat.S_IMODE(os.stat("runs").st_mode))
""",
    "file for update": """
import fcntl, io, subprocess
with open("data.bin", "r+b") as file:
    print(file.read(3), file.name, file.mode, isinstance(file.raw, io.FileIO))
    print(file.seek(2), file.write(b"XX"), file.read(2), open("data.bin", "rb").read(6))
    file.flush()
    print(open("data.bin", "rb").read(6), file.seek(0), file.read(6))
with open("data.bin", "a+b", buffering=0) as raw, open("data.bin", "r+", encoding="latin-1") as text:
    print(raw.seek(1), raw.read(2), raw.write(b"end"), raw.tell(), len(text.read()), text.mode)
    fcntl.lockf(text, fcntl.LOCK_EX)
    os.write(text.fileno(), b"!")
    text.truncate(20_004)
with open("data.bin", "a") as log:
    subprocess.run(["uname", "-s"], stdout=log, check=True)
print(open("data.bin", "rb").read()[-8:], os.path.getsize("data.bin"))
""",
    "renamed and deleted while open": """
with open("data.bin", "r+b") as file:
    os.rename("data.bin", "moved.bin")
    file.write(b"moved")
print(open("moved.bin", "rb").read(7), os.path.exists("data.bin"))
with open("moved.bin", "r+b") as moved, open("data.db", "r+b") as deleted:
    os.remove("data.db")
    print(deleted.write(b"gone"), deleted.seek(0), deleted.read(6), os.path.exists("data.db"))
""",
    "memory maps for update": """
import mmap, numpy
one, other = (numpy.memmap("data.bin", dtype="u1") for _ in range(2))
one[5000] = 177
print(one[5000], open("data.bin", "rb").read()[5000], other[5000], one.mode)
other[1] = 9
print(one[1], open("data.bin", "rb").read(2))
with open("data.bin", "r+b") as file:
    pages = mmap.mmap(file.fileno(), 0)
print(isinstance(pages, mmap.mmap), pages[1], pages.find(b"b"))
pages[2:4] = b"zz"
child = os.fork()
if not child:
    print(open("data.bin", "rb").read(5), flush=True)
    pages[4:5] = b"c"
    os._exit(0)
os.waitpid(child, 0)
print(pages[:6], one[:6])
pages.flush()
pages.close()
print(open("data.bin", "rb").read(6))
""",
    "memory map written by workers": """
import multiprocessing, numpy
mapped = numpy.memmap("data.bin", dtype="u1")

def fill(number):
    mapped[number * 100] = number + 1

with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(fill, range(100), chunksize=1)
    pool.close()
    pool.join()
print(numpy.fromfile("data.bin", "u1")[::100].tolist(), numpy.memmap("data.bin", dtype="u1", mode="r")[500])
""",
    "database for update": """
import sqlite3
database = sqlite3.connect("data.db")
database.row_factory = sqlite3.Row
database.create_function("twice", 1, lambda x: 2 * x)
database.execute("pragma cache_size=77")
rows = database.cursor().execute("select x from samples order by x")
other = sqlite3.connect("data.db", isolation_level=None)
print(next(rows)["x"], database.execute("select twice(max(x)) from samples").fetchone()[0])
print(other.execute("select count(*) from samples").fetchone())
rows.close()
with database:
    print(database.execute("insert into samples values (?)", (-5,)).rowcount, database.in_transaction)
    database.executemany("insert into samples values (?)", ((number,) for number in range(3)))
print(database.execute("select twice(min(x)), count(*) from samples").fetchone()[:], database.execute("pragma cache_size").fetchone()[0])
print(other.execute("select count(*) from samples").fetchone(), isinstance(other, sqlite3.Connection))
other.execute("with new(x) as (values (1)) insert into samples select x from new")
print(database.execute("select count(*) from samples").fetchone()[0])
third = sqlite3.connect("data.db")
third.executescript("begin; delete from samples where x < 10; commit; create table more (y)")
print(third.execute("select count(*) from samples").fetchone(), third.total_changes)
third.execute("pragma journal_mode=wal")
third.execute("insert into samples values (7)")
third.commit()
print(sqlite3.connect("data.db").execute("select count(*) from samples").fetchone())
for each in (database, other, third):
    each.close()
""",
    "forked process": """
import threading
child = os.fork()
if not child:
    writer = threading.Thread(target=Path("best.pt").write_text, args=("child",))
    writer.start()
    writer.join()
    os._exit(0)
os.waitpid(child, 0)
print(Path("best.pt").read_text())
import multiprocessing
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map(os.path.getsize, ["best.pt"]), pool.map(os.remove, ["best.pt"]), os.path.exists("best.pt"))
""",
    "programs that only read": """
import subprocess
print(subprocess.check_output(["uname", "-s"], text=True), subprocess.check_output("uname -s", shell=True, text=True))
""",
}

TORCH_SCRIPTS = {
    "ImageNet example": """
import torch
model = torch.nn.Linear(2, 2)
for epoch in range(2):
    torch.save({"epoch": epoch, "model": model.state_dict()}, "checkpoint.pt")
    shutil.copyfile("checkpoint.pt", "best.pt")
print(torch.load("best.pt")["epoch"], torch.load("checkpoint.pt", mmap=True)["model"].keys())
with open("runs/3.pt", "wb") as file:
    torch.save(model.state_dict(), file)
torch.save(model.state_dict(), Path("runs", "\u00fcber.pt"))
print(torch.load("latest.pt").keys(), torch.load("runs/\u00fcber.pt").keys())
""",
    "formats": """
import json
import safetensors.torch, tokenizers, torch
import torch.distributed.checkpoint as checkpoint
state = {"weight": torch.ones(2)}
safetensors.torch.save_file(state, "model.safetensors")
print(safetensors.torch.load_file("model.safetensors"))
os.mkdir("checkpoint-500")
tokenizers.Tokenizer(tokenizers.models.BPE()).save("checkpoint-500/tokenizer.json")
print(tokenizers.Tokenizer.from_file("checkpoint-500/tokenizer.json").get_vocab_size())
checkpoint.save(state, checkpoint_id="old_run/sharded", no_dist=True)
state["weight"].zero_()
checkpoint.load(state, checkpoint_id="old_run/sharded", no_dist=True)
print(state, sorted(os.listdir("old_run/sharded")))
torch.from_file("shared.bin", shared=True, size=2, dtype=torch.float32).fill_(3)
print(torch.from_file("shared.bin", size=2, dtype=torch.float32))
with torch.profiler.profile() as profile:
    torch.ones(1).sum()
profile.export_chrome_trace("trace.json")
print("traceEvents" in json.load(open("trace.json")))
torch.jit.script(torch.nn.Linear(2, 2)).save("scripted.pt")
print(torch.jit.load("scripted.pt").original_name)
""",
    "workers": """
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        Path(f"runs/{index}.txt").write_text(os.environ["TORCH_METHOD"])
        with open("log.txt", "a") as log:
            log.write("sample\\n")
        return index

with open("imported.log", "w") as log:
    log.write("by every process that imports the script")

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        os.environ["TORCH_METHOD"] = method
        print(list(DataLoader(Samples(), num_workers=1, multiprocessing_context=method)))
        print(Path("runs/1.txt").read_text(), os.path.getsize("log.txt"), sorted(os.listdir("runs")))
""",
}

LIBRARY_SCRIPTS = {
    "pyarrow": """
import pyarrow as pa
import pyarrow.csv, pyarrow.dataset, pyarrow.feather, pyarrow.parquet as parquet
table = pa.table({"a": [1, 2], "b": ["x", "y"]})
parquet.write_table(table, "new.parquet")
with parquet.ParquetWriter("rows.parquet", table.schema) as writer:
    writer.write_table(table)
    writer.write_table(table)
print(parquet.read_table("new.parquet").to_pylist(), parquet.ParquetFile("rows.parquet").metadata.num_rows)
print(parquet.read_table(["new.parquet", "rows.parquet"]).num_rows, pyarrow.dataset.dataset(Path("new.parquet")).count_rows())
pyarrow.dataset.write_dataset(table, "parts", format="parquet")
print(pyarrow.dataset.dataset("parts").count_rows(), parquet.read_table("parts").num_rows)
pyarrow.feather.write_feather(table, "new.feather")
pyarrow.csv.write_csv(table, "new.csv")
print(pyarrow.feather.read_table("new.feather").num_rows, pyarrow.csv.read_csv("new.csv").num_rows)
with pa.OSFile("new.arrow", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
    writer.write_table(table)
with pa.memory_map("new.arrow") as source:
    print(pa.ipc.open_stream(source).read_all().num_rows, isinstance(source, pa.MemoryMappedFile))
Path("python.parquet").write_bytes(Path("new.parquet").read_bytes())
print(parquet.read_table("python.parquet").num_rows, isinstance(pa.OSFile("python.parquet"), pa.OSFile))
import pyarrow.fs
local = pyarrow.fs.LocalFileSystem()
local.create_dir("made/deep")
with local.open_output_stream("made/deep/text") as file:
    file.write(b"text")
with local.open_append_stream("made/deep/text") as file:
    file.write(b" and more")
local.move("made/deep/text", "made/text")
local.copy_file("made/text", "made/deep/copy")
print(local.open_input_file("made/deep/copy").read(), os.listdir("made"), isinstance(local, pyarrow.fs.LocalFileSystem))
print(parquet.read_table("new.parquet", filesystem=local).num_rows, local.open_input_stream("log.txt").read())
local.delete_file("made/text")
local.delete_dir("made/deep")
print(os.listdir("made"))
""",
    "pandas": """
import pandas
for number in range(2):
    pandas.DataFrame({"a": [number]}).to_parquet(f"table/part-{number + 1}.parquet")
print(sorted(pandas.read_parquet("table")["a"]), pandas.read_parquet("table/part-0.parquet")["a"].tolist())
os.remove("table/part-0.parquet")
print(sorted(pandas.read_parquet("table")["a"]))
""",
    "datasets": """
import datasets
datasets.disable_progress_bars()
rows = datasets.Dataset.from_dict({"x": list(range(6))})
rows.save_to_disk("saved")
loaded = datasets.load_from_disk("saved")
doubled = loaded.map(lambda row: {"x": 2 * row["x"]})
print(doubled["x"][:], loaded.filter(lambda row: row["x"] > 3)["x"][:], len(doubled.sort("x")))
doubled.to_parquet("doubled.parquet")
print(datasets.Dataset.from_parquet("doubled.parquet")["x"][:])
""",
    "cv2": """
import cv2, numpy
picture = numpy.full((64, 64, 3), 200, numpy.uint8)
print(cv2.imwrite("new.png", picture), cv2.imread("new.png").mean())
video = cv2.VideoWriter("new.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (64, 64))
for _ in range(3):
    video.write(picture)
video.release()
frames = cv2.VideoCapture("new.avi")
print(isinstance(frames, cv2.VideoCapture), frames.isOpened(), int(frames.get(cv2.CAP_PROP_FRAME_COUNT)))
Path("python.png").write_bytes(Path("new.png").read_bytes())
print(cv2.imread("python.png").shape)
""",
    "soundfile": """
import numpy, soundfile
soundfile.write("new.wav", numpy.zeros(800), 8000)
print(soundfile.read("new.wav")[0].shape, soundfile.info("new.wav").samplerate)
with soundfile.SoundFile("new.wav", "r+") as sound:
    sound.write(numpy.ones(900))
print(soundfile.read("new.wav")[0].shape)
""",
    "torch.distributed": """
import torch
torch.distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=0, world_size=1)
print(torch.distributed.get_world_size(), os.path.getsize("meeting") > 0)
torch.distributed.destroy_process_group()
""",
}
"""By the module that each needs."""

CUDA_SCRIPT = """
import torch
torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:" + os.environ["FREE_PORT"], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
compiled = torch.compile(model)
loader = torch.utils.data.DataLoader(torch.ones(8, 8), batch_size=4, num_workers=2, pin_memory=True)
for batch in loader:
    compiled(batch.cuda(non_blocking=True)).square().sum().backward()
torch.save(model.state_dict(), "checkpoint.pt")
print(torch.load("checkpoint.pt", map_location="cuda")["module.weight"].shape)
torch.distributed.destroy_process_group()
"""

HEADER = "import os, shutil, tempfile\nfrom pathlib import Path\n"
