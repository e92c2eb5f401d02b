"""Batches that are made on a GPU beside the training, and are complete when the training gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class SideStream:
    """A stream of its own on a GPU, not behind the kernels of the last step; on a CPU, nothing."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def run(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What ``make`` returns, complete."""
        if self._stream is None:
            return make()
        with torch.cuda.stream(self._stream):
            batch = make()
        self._stream.synchronize()
        return batch


def hand_over(batch: Sequence[Tensor]) -> None:
    """The current stream reads ``batch`` from now on: its memory is not reused before."""
    for each in batch:
        if each.is_cuda:
            each.record_stream(torch.cuda.current_stream(each.device))
