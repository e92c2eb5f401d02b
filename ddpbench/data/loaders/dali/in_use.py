"""Memory of DALI's that the device still reads."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

MAX_BATCHES_IN_USE = 8
"""Batches that the device may still have to train on. A host that is further ahead waits, or they would fill its memory."""


class BatchKeepAlive:
    """Keeps the batches that the device may not be done with.

    DALI takes back the memory of a batch when nobody on the host refers to it any more, and knows nothing of the stream that
    still reads it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: Tensor | None = None
        self._issued: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def add(self, batch: Tensor) -> None:
        """It is trained on next."""
        self._last = batch

    def mark_last_issued(self) -> None:
        """All that reads the last batch has been issued on the current stream."""
        if self._last is not None:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self._device))
            self._issued.append((done, self._last))
            self._last = None
        if len(self._issued) > MAX_BATCHES_IN_USE:
            self._issued[0][0].synchronize()
        while self._issued and self._issued[0][0].query():
            self._issued.popleft()

    def wait(self) -> None:
        """Until the device is done with all of them."""
        self.mark_last_issued()
        while self._issued:
            self._issued.popleft()[0].synchronize()
