"""Invalid record files of an output folder."""

from __future__ import annotations

from pathlib import Path

import records

from ddpbench.record.io import save

DEFECTS = (
    "empty",
    "truncated",
    "not UTF-8",
    "other JSON",
    "newer",
    "deep nesting",
    "other type",
    "dangling link",
    "directory",
    "unreadable",
)


def write(path: Path, defect: str) -> None:
    """Create ``path`` with ``defect``."""
    if defect == "directory":
        path.mkdir()
        return
    if defect == "dangling link":
        path.symlink_to("nowhere.json")
        return
    save(records.job(records.record()), path)
    text = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "truncated": text[:300],
            "not UTF-8": text.replace(b"ddpbench", b"ddp\xffbench"),
            "other JSON": b"[1, 2]",
            "newer": b'{"schema": 999}',
            "deep nesting": b'{"schema": 2, "started": "2026", "records": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
            "other type": text.replace(b'"command":[', b'"command":[1,'),
        }.get(defect, text)
    )
    if defect == "unreadable":
        path.chmod(0)
