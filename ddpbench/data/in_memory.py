"""A dataset in memory, and errors for files that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from ddpbench.record.errors import UsageError
from ddpbench.record.record import DatasetInfo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Split = Literal["train", "held-out"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class InMemoryDataset:
    """Images, uint8 (N, S, S, C), or points, float32 (N, F), and the class of each, int64 (N,)."""

    samples: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    description: str
    generated: bool = False

    def describe(self, loader: str) -> DatasetInfo:
        """Which data a loader of that name reads here."""
        return DatasetInfo(loader=loader, description=self.description, file_kind="", images=len(self.labels), generated=self.generated)


def raise_unreadable(problem: OSError) -> NoReturn:
    """Raises UsageError with the file's or folder's name."""
    raise UsageError(f"cannot read '{problem.filename}': {problem.strerror}") from problem


@contextmanager
def os_error_as_usage_error() -> Iterator[None]:
    """Around looking into folders and reading files of somebody's. Raises UsageError with the name of one that cannot be."""
    try:
        yield
    except OSError as problem:
        raise_unreadable(problem)
