"""Batches that lie on the device, while another loader works as hard as it would if its own were trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from ddpbench.data.loader import Batch, Loader
from ddpbench.record.loader_stats import LoaderStats


class LoaderHandle(Protocol):
    """What is asked of the loader beside."""

    def worker_pids(self) -> list[int]: ...

    def close(self) -> None: ...


class BackgroundLoader:
    """Gives the batches of ``resident``, and for each takes one of ``working`` and drops it, in a thread that nobody waits for.

    As many as are trained on, also where the host issues all steps of a round long before the device is done with them. A loader that
    is slower than the training is always behind, and never rests. ``take`` takes its next batch.
    """

    max_prefetched = 0

    def __init__(self, synthetic_loader: Loader, background: LoaderHandle, take: Callable[[], object]) -> None:
        self.data = synthetic_loader.data
        self._synthetic_loader, self._background, self._take = synthetic_loader, background, take
        self._pending, self._closing = 0, False
        self._batch_size = self._images_taken = 0  # images in each, and all that were taken
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ddpbench-beside", daemon=True)
        self._thread.start()

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        if self._error:
            raise self._error
        batch = self._synthetic_loader.next_batch(on_host_ready)
        with self._changed:
            self._batch_size = len(batch[1])
            self._pending += 1
            self._changed.notify()
        return batch

    def pop_stats(self) -> LoaderStats:
        """How many images were taken since the last call. What is owed from before it is let off: it would be taken beside other steps."""
        with self._changed:
            taken, self._images_taken, self._pending = self._images_taken, 0, 0
        return LoaderStats(images=taken)

    def worker_pids(self) -> list[int]:
        return self._background.worker_pids()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._background.close()
        self._synthetic_loader.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if self._closing:
                    return
                self._pending -= 1
            try:
                self._take()
            except Exception as problem:  # the training's own thread raises it
                self._error = problem
                return
            with self._changed:
                self._images_taken += self._batch_size
