"""The collective in which a rank waits, from torch's flight recorder, which records them without being asked to."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from torch import distributed as dist

DUMPS = ("_dump_nccl_trace", "_dump_fr_trace")
"""Functions of torch that return what was recorded of NCCL, and of other backends."""


def pending_collective() -> str:
    """``nccl:all_reduce 57 [[1000]]``: the oldest collective of this rank that has not finished, its number and its inputs' shapes.

    Empty without one, and where torch records none (TORCH_FR_BUFFER_SIZE=0). May be called in any thread.
    """
    pending = [entry for name in DUMPS for entry in _entries(name) if entry["state"] != "completed" and not entry["retired"]]
    if not pending:
        return ""
    oldest = min(pending, key=lambda entry: int(entry["record_id"]))
    number, shapes = oldest["collective_seq_id"], oldest["input_sizes"]
    return f"{oldest['profiling_name']} {number}" + (f" {shapes}" if shapes else "")


def _entries(dump_name: str) -> list[Mapping[str, Any]]:
    """What the flight recorder has under ``dump_name``; empty if this torch has no such recorder, or another format."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    from torch._C import _distributed_c10d as c10d

    try:
        trace = pickle.loads(getattr(c10d, dump_name)(includeStackTraces=False))
        return [entry for entry in trace.get("entries", []) if {"state", "retired", "record_id", "profiling_name"} <= entry.keys()]
    except Exception:  # an unstable interface of torch: without it, the report lacks the collective
        return []
