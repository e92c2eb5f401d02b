"""CIFAR-10's python batches, in torchvision's layout.

The files are DIR/cifar-10-batches-py/data_batch_1 to 5 and test_batch, or the same in DIR itself.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from ddpbench.data.in_memory import InMemoryDataset, Split, os_error_as_usage_error
from ddpbench.record.errors import UsageError

SIDE, CLASSES = 32, 10
ALLOWED_GLOBALS = frozenset({"numpy._reconstruct", "numpy._frombuffer", "numpy.ndarray", "numpy.dtype", "_codecs.encode"})
"""Names that a pickled array needs, in any numpy version, without the submodules in between."""

LAYOUT = "DIR/cifar-10-batches-py/data_batch_1 to 5 are required, in the layout of torchvision.datasets.CIFAR10"
_PATTERN: dict[Split, str] = {"train": "data_batch_[0-9]", "held-out": "test_batch"}
_EXPECTED_FILES: dict[Split, list[str]] = {"train": [f"data_batch_{number}" for number in range(1, 6)], "held-out": ["test_batch"]}


def files(directory: str, part: Split) -> list[Path]:
    """The batches of ``part`` in ``directory``, in order; empty if there are none."""
    root = Path(directory)
    return sorted((root / "cifar-10-batches-py").glob(_PATTERN[part])) or sorted(root.glob(_PATTERN[part]))


def read(directory: str, part: Split) -> InMemoryDataset:
    """All batches of ``part`` in ``directory``, which has at least one.

    Raises UsageError naming the file that is not a CIFAR-10 batch, or the missing one.
    """
    import numpy as np

    paths = files(directory, part)
    batches = [_unpickle(file) for file in paths]
    if missing := [name for name in _EXPECTED_FILES[part] if name not in {file.name for file in paths}]:
        raise UsageError(f"CIFAR-10 in '{paths[0].parent}' is incomplete: no {', '.join(missing)}", "download the dataset again")
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, SIDE, SIDE)
    labels = np.array([label for batch in batches for label in batch[b"labels"]], np.int64)
    return InMemoryDataset(np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels, "cifar10")


class _Unpickler(pickle.Unpickler):
    """Unpickles only arrays.

    The folder may come from an untrusted source, and a pickle can run any program.
    """

    def find_class(self, module: str, name: str) -> Any:
        if f"{module.partition('.')[0]}.{name}" not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it needs {module}.{name}, so it is not a plain array")
        return super().find_class(module, name)


def _unpickle(file: Path) -> dict[bytes, Any]:
    with os_error_as_usage_error():
        content = file.read_bytes()
    try:
        batch: dict[bytes, Any] = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if b"fine_labels" in batch:
            raise ValueError("it is a CIFAR-100 file")
        if batch[b"data"].shape != (len(batch[b"labels"]), 3 * SIDE * SIDE) or batch[b"data"].dtype != "uint8":
            raise ValueError("its pixels and labels do not match")
        if not all(0 <= label < CLASSES for label in batch[b"labels"]):
            raise ValueError(f"a label is not between 0 and {CLASSES - 1}")
    except Exception as problem:  # a damaged pickle raises nearly anything
        raise UsageError(f"'{file}' is not a CIFAR-10 batch: {problem}", "download the dataset again") from problem
    return batch
