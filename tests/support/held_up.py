"""Device batches with delayed delivery."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.data.loader import Batch, NoWorkersMixin
from ddpbench.data.loaders.synthetic import SyntheticLoader


class DelayedLoader(NoWorkersMixin):
    """The ``resident`` batches; ``hold_up`` is called before each and blocks as long as it wants."""

    def __init__(self, resident: SyntheticLoader, hold_up: Callable[[], None]) -> None:
        self._resident, self._hold_up, self.data = resident, hold_up, resident.data

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        self._hold_up()
        return self._resident.next_batch(on_host_ready)
