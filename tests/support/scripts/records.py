"""A training on records in one file, or on a stream, as users write them. It counts the records that are not the requested ones."""

import argparse
import os
import struct
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

RECORDS, VALUES, BATCH = 4096, 1024, 16
FORMAT = f"{VALUES}f"
SIZE = struct.calcsize(FORMAT)


def write(path: Path, kind: str) -> None:
    contents = [struct.pack(FORMAT, index, *[0.5] * (VALUES - 1)) for index in range(RECORDS)]
    if kind == "raw":
        path.write_bytes(b"".join(contents))
        return
    with zipfile.ZipFile(path, "w") as archive:
        for index, content in enumerate(contents):
            archive.writestr(f"{index}", content, zipfile.ZIP_DEFLATED)


class RecordFile(Dataset):
    """Opens its file in the constructor, or with the first record."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path, self.options = path, options
        self.file = None if options.lazy else self.open()

    def open(self) -> Any:
        return self.path.open("rb") if self.options.kind == "raw" else zipfile.ZipFile(self.path)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = self.open()
        time.sleep(self.options.sample_ms / 1000)
        if self.options.kind == "raw":
            self.file.seek(index * SIZE)
            content = self.file.read(SIZE).ljust(SIZE, b"\0")  # shorter where another worker moved the position
        else:
            content = self.file.read(f"{index}")
        values = torch.frombuffer(bytearray(content), dtype=torch.float32)
        return values / RECORDS, int(values[0] != index)


class Stream(IterableDataset):
    """Numbers in their order. Every worker yields all of them, or its share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.options.divide else None
        for index in range(info.id if info else 0, RECORDS, info.num_workers if info else 1):
            time.sleep(self.options.sample_ms / 1000)
            yield torch.full((VALUES,), index / RECORDS), 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["raw", "zip", "stream"], default="raw")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--sample-ms", type=float, default=1.0)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--divide", action="store_true")
    parser.add_argument("--fail-after-children", action="store_true")
    options = parser.parse_args()
    path = options.folder / f"records.{options.kind}"
    if options.kind != "stream" and not path.exists():
        write(path, options.kind)
    if options.kind == "stream":
        loader = DataLoader(Stream(options), BATCH, num_workers=options.workers)
    else:
        loader = DataLoader(RecordFile(path, options), BATCH, shuffle=True, num_workers=options.workers)
    model = nn.Linear(VALUES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrong = 0
    try:
        for _ in range(1000):
            for values, others in loader:
                optimizer.zero_grad()
                model(values).square().mean().backward()
                optimizer.step()
                wrong += int(others.sum())
                if options.fail_after_children and os.times().children_user:
                    raise RuntimeError("no such luck")
    finally:
        print(f"wrong {wrong}")


if __name__ == "__main__":
    main()
