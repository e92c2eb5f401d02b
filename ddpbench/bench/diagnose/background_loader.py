"""Batches that lie on the device, while another loader works as hard as it would if its own were trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from ddpbench.data.loader import Batch, Loader
from ddpbench.record.loader_stats import Loading


class Working(Protocol):
    """What is asked of the loader beside."""

    def worker_pids(self) -> list[int]: ...

    def close(self) -> None: ...


class Beside:
    """Gives the batches of ``resident``, and for each takes one of ``working`` and drops it, in a thread that nobody waits for.

    As many as are trained on, also where the host issues all steps of a round long before the device is done with them. A loader that
    is slower than the training is always behind, and never rests. ``take`` takes its next batch.
    """

    in_flight = 0

    def __init__(self, resident: Loader, working: Working, take: Callable[[], object]) -> None:
        self.data = resident.data
        self._resident, self._working, self._take = resident, working, take
        self._owed, self._closing = 0, False
        self._batch = self._taken = 0  # images in each, and all that were taken
        self._changed = threading.Condition()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="ddpbench-beside", daemon=True)
        self._thread.start()

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        if self._failed:
            raise self._failed
        batch = self._resident.next_batch(in_hand)
        with self._changed:
            self._batch = len(batch[1])
            self._owed += 1
            self._changed.notify()
        return batch

    def loading(self) -> Loading:
        """How many images were taken since the last call. What is owed from before it is let off: it would be taken beside other steps."""
        with self._changed:
            taken, self._taken, self._owed = self._taken, 0, 0
        return Loading(images=taken)

    def worker_pids(self) -> list[int]:
        return self._working.worker_pids()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._working.close()
        self._resident.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._owed or self._closing)
                if self._closing:
                    return
                self._owed -= 1
            try:
                self._take()
            except Exception as problem:  # the training's own thread raises it
                self._failed = problem
                return
            with self._changed:
                self._taken += self._batch
