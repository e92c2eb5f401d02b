"""Invalid record files of an output folder."""

from __future__ import annotations

from pathlib import Path

import records

from ddpbench.record.io import save

WRONG = ("empty", "cut off", "not UTF-8", "other JSON", "newer", "deep nesting", "other type", "dangling link", "directory", "unreadable")


def put(path: Path, wrong: str) -> None:
    """Create ``path`` with this defect."""
    if wrong == "directory":
        path.mkdir()
        return
    if wrong == "dangling link":
        path.symlink_to("nowhere.json")
        return
    save(records.job(records.record()), path)
    text = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut off": text[:300],
            "not UTF-8": text.replace(b"ddpbench", b"ddp\xffbench"),
            "other JSON": b"[1, 2]",
            "newer": b'{"schema": 999}',
            "deep nesting": b'{"schema": 2, "started": "2026", "records": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
            "other type": text.replace(b'"command":[', b'"command":[1,'),
        }.get(wrong, text)
    )
    if wrong == "unreadable":
        path.chmod(0)
