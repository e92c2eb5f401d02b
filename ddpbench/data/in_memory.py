"""A data set that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ddpbench.record.record import Data

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Part = Literal["train", "held-out"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Arrays:
    """Images, uint8 (N, S, S, C), or points, float32 (N, F), and the class of each, int64 (N,)."""

    samples: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    description: str
    made: bool = False

    def data(self, loader: str) -> Data:
        """Which data a loader of that name reads here."""
        return Data(loader=loader, description=self.description, files="", images=len(self.labels), made=self.made)
