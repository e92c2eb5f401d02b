"""Device batches with delayed delivery."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.data.loader import Batch, NoWorkersMixin
from ddpbench.data.loaders.synthetic import SyntheticLoader


class DelayedLoader(NoWorkersMixin):
    """The ``resident`` batches; ``delay`` is called before each and may block."""

    def __init__(self, resident: SyntheticLoader, delay: Callable[[], None]) -> None:
        self._resident, self._delay, self.data = resident, delay, resident.data

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        self._delay()
        return self._resident.next_batch(on_host_ready)
