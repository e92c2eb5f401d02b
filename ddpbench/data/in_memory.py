"""A data set that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

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
