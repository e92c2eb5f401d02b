"""A dataset in memory, and errors for unreadable files."""

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
    """Samples and labels in memory.

    Samples are images, uint8 (N, S, S, C), or points, float32 (N, F); labels are classes, int64 (N,).
    """

    samples: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    dataset: str
    generated: bool = False

    def describe(self, loader: str) -> DatasetInfo:
        """DatasetInfo for the loader named ``loader``."""
        return DatasetInfo(loader=loader, dataset=self.dataset, num_samples=len(self.labels), generated=self.generated)


def raise_unreadable(problem: OSError) -> NoReturn:
    """Raise UsageError with the name of the file or folder."""
    raise UsageError(f"cannot read '{problem.filename}': {problem.strerror}") from problem


@contextmanager
def os_error_as_usage_error() -> Iterator[None]:
    """Context that turns an OSError on user files into a UsageError with the file name."""
    try:
        yield
    except OSError as problem:
        raise_unreadable(problem)
