"""How many samples a sampler asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

BATCHED_INDEX = (list, range, np.ndarray, Tensor)
"""What a sampler yields for several samples at once, in a loader without batches of its own. A tuple may be one compound index."""


def num_indices(indices: Any, is_batch: bool) -> int | None:
    """Samples that ``indices`` stand for; None if unknown, as of an IterableDataset.

    ``is_batch`` says that they come from a batch sampler, not from the sampler of a loader with ``batch_size=None``.
    """
    if not is_batch and not isinstance(indices, BATCHED_INDEX):
        return None
    try:
        number = len(indices)
        first = indices[0] if number else None
    except Exception:  # of the user's own class
        return None
    if first is None:
        return None
    return sum(map(len, indices)) if isinstance(first, list) else number
