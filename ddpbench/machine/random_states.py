"""The global random states of a process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


class RandomStates:
    """Those of Python, NumPy and torch's CPU, and of ``device`` if that is a GPU, as of now."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), self._torch_states()

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch[0])
        if self._device is not None:
            torch.cuda.set_rng_state(self._torch[1], self._device)

    @property
    def torch_has_drawn(self) -> bool:
        """Whether torch has drawn random numbers since they were read or restored."""
        return not all(map(torch.equal, self._torch_states(), self._torch))

    def _torch_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([] if self._device is None else [torch.cuda.get_rng_state(self._device)])]


@contextmanager
def kept_random_states(generator: torch.Generator | None = None) -> Iterator[None]:
    """Restore the global random states afterwards, and that of ``generator``."""
    states, own = RandomStates(), generator.get_state() if generator is not None else None
    try:
        yield
    finally:
        states.restore()
        if generator is not None and own is not None:
            generator.set_state(own)
