"""Open files of a dataset: what forked workers would share, and what they may."""

from __future__ import annotations

import functools
import gzip
import mmap
import socket
import sqlite3
import sys
import tarfile
import threading
import zipfile
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, get_worker_info

from ddpbench.script.diagnose.object_parts import MAX_ITEMS
from ddpbench.script.diagnose.open_files import MAX_OBJECTS, find_open_files
from ddpbench.script.diagnose.own_loader import timed_get_iterator
from ddpbench.script.diagnose.shared_files import SharedFiles

OPENED: list[Any] = []
"""A global variable that a dataset may use."""


class Holder(Dataset[Any]):
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class WithGlobal(Holder):
    def __getitem__(self, index: int) -> int:
        return len(OPENED[0].read(index))


class Transform(torch.nn.Module):
    def __init__(self, file: Any) -> None:
        super().__init__()
        self.file = file


class WithSlot:
    __slots__ = ("file",)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 32)
    return path


@pytest.fixture
def file(data: Path) -> Iterator[Any]:
    with data.open("rb") as opened:
        yield opened


def found(*roots: Any) -> list[tuple[str, str]]:
    return [(each.name, each.kind) for each in find_open_files(*roots).files]


def test_file_is_found_wherever_it_is(file: Any) -> None:
    holder = Holder(file=file)
    assert found(holder) == [("Holder.file", "file")]
    assert found(Subset(holder, [0])) == [("Subset.dataset.file", "file")]
    assert found(ConcatDataset([TensorDataset(torch.zeros(2)), holder])) == [("ConcatDataset.datasets[1].file", "file")]
    assert found(Holder(parts={"a": [(0, file)]})) == [("Holder.parts['a'][0][1]", "file")]
    assert found(Holder(transform=lambda sample: file.read(sample))) == [("Holder.transform.file", "file")]
    assert found(Holder(transform=functools.partial(print, file=file))) == [("Holder.transform.file", "file")]
    assert found(Holder(transform=torch.nn.Sequential(Transform(file)))) == [("Holder.transform._modules['0'].file", "file")]
    (opened := threading.local()).file = file
    assert found(Holder(opened=opened)) == [("Holder.opened.file", "file")]
    assert found(Holder(read=file.read)) == []  # a method in C: its owner cannot be seen
    assert found(Holder(read=holder.__getitem__)) == [("Holder.read.file", "file")]
    assert found(TensorDataset(torch.zeros(2)), lambda samples: file.read(samples)) != []


def test_file_in_a_slot_a_class_a_generator_and_a_global_variable_is_found(file: Any) -> None:
    slotted = WithSlot()
    assert found(Holder(inner=slotted)) == []
    slotted.file = file
    assert found(Holder(inner=slotted)) == [("Holder.inner.file", "file")]

    class OfClass(Holder):
        shared = file

    assert found(OfClass()) == [("OfClass.shared", "file")]
    lines = (line for line in file)
    assert found(Holder(lines=lines)) == [("Holder.lines..0", "file")]
    OPENED.append(file)
    assert found(WithGlobal()) == [("OPENED[0]", "file")]
    OPENED.clear()


def test_file_that_a_cached_function_has_opened_is_found(data: Path) -> None:
    opened = functools.lru_cache(maxsize=2)(lambda path: path.open("rb"))
    dataset = Holder(opened=opened)
    assert found(dataset) == []
    with opened(data):
        assert found(dataset) == [("Holder.opened", "file")]


def test_functions_of_a_diagnosis_are_not_searched(file: Any) -> None:
    """In a protected script, ``os.listdir`` and others are functions of ddpbench."""

    def of_the_user(function: Any) -> Any:
        return lambda: function

    assert found(Holder(listdir=of_the_user(file))) == [("Holder.listdir.function", "file")]
    assert found(Holder(listdir=timed_get_iterator(file))) == []


def test_archives_databases_and_connections(data: Path, tmp_path: Path) -> None:
    zipped, tarred, database = tmp_path / "a.zip", tmp_path / "a.tar", tmp_path / "a.db"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(data)
    with tarfile.open(tarred, "w") as tar:
        tar.add(data)
    kinds = {
        "archive": [zipfile.ZipFile(zipped), tarfile.TarFile(tarred)],
        "file": [data.open(), gzip.GzipFile(zipped), (tmp_path / "a.txt").open("w+")],
        "database": [sqlite3.connect(database), sqlite3.connect(database).cursor()],
        "socket": list(socket.socketpair()),
    }
    kinds["database"][0].execute("create table numbers (number int)")
    for kind, handles in kinds.items():
        for handle in handles:
            assert found(Holder(handle=handle)) == [("Holder.handle", kind)]
            handle.connection.close() if isinstance(handle, sqlite3.Cursor) else handle.close()
            assert found(Holder(handle=handle)) == []


def test_writable_memory_maps(data: Path) -> None:
    with data.open("r+b") as opened:
        shared, private, read = (
            mmap.mmap(opened.fileno(), 0),
            *(mmap.mmap(opened.fileno(), 0, access=access) for access in (mmap.ACCESS_COPY, mmap.ACCESS_READ)),
        )
    assert found(Holder(map=shared)) == [("Holder.map", "memory-map")]
    assert found(Holder(map=np.memmap(data, mode="r+"))) == [("Holder.map", "memory-map")]
    assert found(Holder(map=np.asarray(np.memmap(data, mode="r+"))[2:4])) == [("Holder.map", "memory-map")]
    assert found(Holder(maps=[private, read, np.memmap(data, mode="r"), np.memmap(data, mode="c")])) == []


def safe_values(data: Path, tmp_path: Path) -> Iterator[Any]:
    yield np.arange(4), np.array(["a", "b"]), np.random.default_rng(0)
    yield torch.arange(4), torch.Generator(), torch.nn.Linear(2, 2), torch.from_numpy(np.memmap(data, mode="r"))
    path = tmp_path / "image.png"
    Image.new("RGB", (4, 4)).save(path)
    yield Image.open(path).convert("L"), Image.new("RGB", (2, 2))
    (opened := Image.open(path)).load()
    yield opened
    yield mmap.mmap(-1, 4, access=mmap.ACCESS_COPY)
    with (tmp_path / "log.txt").open("w") as log:
        yield log
    yield sqlite3.connect(":memory:")
    yield str(data), data, b"bytes", re_iterable()


def re_iterable() -> Any:
    return zip([1], [2], strict=True)


def test_what_is_in_memory_is_safe(data: Path, tmp_path: Path) -> None:
    for value in safe_values(data, tmp_path):
        assert found(Holder(value=value)) == []


def test_image_that_is_not_loaded_yet_is_an_open_file(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "image.png")
    with Image.open(tmp_path / "image.png") as image:
        assert [kind for _, kind in found(Holder(image=image))] == ["file"]


@pytest.mark.parametrize("package", ["tokenizers", "pandas"])
def test_tokenizers_and_tables_are_safe(package: str, data: Path, tmp_path: Path) -> None:
    module = pytest.importorskip(package)
    if package == "pandas":
        (tmp_path / "table.csv").write_text("a,b\n1,2\n")
        value = module.read_csv(tmp_path / "table.csv")
    else:
        value = module.Tokenizer(module.models.WordLevel({"a": 0}, unk_token="a"))
    assert found(Holder(value=value)) == []


def test_hdf5_files_and_their_datasets(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as opened:
        opened["numbers"] = np.arange(4)
        assert found(Holder(file=opened)) == [("Holder.file", "hdf5")]
        assert found(Holder(numbers=opened["numbers"])) == [("Holder.numbers", "hdf5")]
    assert found(Holder(file=opened)) == []


def test_lmdb_environments(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    environment = lmdb.open(str(tmp_path / "db"))
    assert found(Holder(env=environment)) == [("Holder.env", "database")]
    with environment.begin() as transaction:
        assert found(Holder(transaction=transaction)) == [("Holder.transaction", "database")]


def test_search_ends_in_cycles_and_large_containers(file: Any) -> None:
    first, second = Holder(), Holder()
    first.other, second.other = second, first  # type: ignore[attr-defined]
    assert found(first) == []
    numbers = [*range(100_000), file]
    assert found(Holder(numbers=numbers)) == [("Holder.numbers[100000]", "file")]
    assert found(Holder(paths={str(index): [str(index)] for index in range(3 * MAX_ITEMS)})) == []
    chains = [[[[[object()] for _ in range(50)] for _ in range(50)] for _ in range(50)] for _ in range(2)]
    search = find_open_files(Holder(chains=chains))
    assert len(search.names) <= MAX_OBJECTS + MAX_ITEMS


def test_class_whose_attributes_raise_an_error_is_skipped(file: Any) -> None:
    class Guarded:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert found(Holder(guarded=Guarded(), file=file)) == [("Holder.file", "file")]


class Lazy(Dataset[Any]):
    """Opens its file with the first sample, in one of several ways."""

    def __init__(self, path: Path, way: str) -> None:
        self.path, self.way = path, way
        if way == "attribute":
            self.file = None
        self.files: dict[str, Any] = {}
        if way == "constructor":
            self.file = path.open("rb")

    def __len__(self) -> int:
        return 512

    def opened(self) -> Any:
        if self.way == "dict":
            return self.files.setdefault("file", self.path.open("rb"))
        if getattr(self, "file", None) is None:
            self.file = self.path.open("rb")
        return self.file

    def __getitem__(self, index: int) -> Any:
        file = self.opened()
        file.seek(16 * index)
        read = file.read(16)
        info = get_worker_info()
        return read[0], info is None or file is not OPENED[0]


@pytest.mark.parametrize("way", ["attribute", "missing", "dict"])
def test_workers_open_their_own_file_if_the_dataset_opens_it_with_a_sample(data: Path, way: str) -> None:
    dataset, files = Lazy(data, way), SharedFiles()
    loader = DataLoader(dataset, batch_size=8)
    files.begin_epoch(loader)
    dataset[0]
    files.begin_epoch(loader)  # of the next epoch
    OPENED.append(dataset.opened())
    assert files.shared(loader) == []
    forked = DataLoader(dataset, batch_size=8, num_workers=2, worker_init_fn=files.worker_init(loader))
    samples = [(first, own) for numbers, owns in forked for first, own in zip(numbers.tolist(), owns.tolist(), strict=True)]
    OPENED.clear()
    assert samples == [(16 * index % 256, True) for index in range(512)]
    assert dataset.opened().tell() == 16, "the position in this process"


def test_object_of_a_library_is_forgotten_only_if_a_sample_has_created_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdlib_module_names", sys.stdlib_module_names - {"zoneinfo"})
    early, late = zoneinfo.ZoneInfo.no_cache("UTC"), zoneinfo.ZoneInfo.no_cache("UTC")
    dataset, files = Holder(early=early, late=None, table=None), SharedFiles()
    loader = DataLoader(dataset)
    files.begin_epoch(loader)
    table = np.arange(4)
    vars(dataset).update(late=late, table=table, epoch=3)
    init = files.worker_init(loader)
    assert init is not None
    init(0)
    assert vars(dataset) == {"early": early, "late": None, "table": table, "epoch": 3}


def test_what_a_constructor_has_opened_is_shared(data: Path) -> None:
    dataset, files = Lazy(data, "constructor"), SharedFiles()
    loader = DataLoader(dataset)
    files.begin_epoch(loader)
    assert [each.name for each in files.shared(loader)] == ["Lazy.file"]
    assert files.shared(DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")) == []


def test_what_is_open_before_the_first_epoch_is_shared(data: Path) -> None:
    dataset, files = Lazy(data, "attribute"), SharedFiles()
    dataset[0]
    files.begin_epoch(DataLoader(dataset))
    assert [each.name for each in files.shared(DataLoader(dataset))] == ["Lazy.file"]


def test_worker_init_of_the_user_is_called(data: Path) -> None:
    called: list[int] = []
    dataset, files = Lazy(data, "attribute"), SharedFiles()
    init: Callable[[int], None] = called.append
    loader = DataLoader(dataset, worker_init_fn=init)
    assert files.worker_init(loader) is init
    files.begin_epoch(loader)
    dataset[0]
    new = files.worker_init(loader)
    assert new is not None
    new(3)
    assert (called, dataset.file) == ([3], None)
