"""Takes batches of a loader in a thread, while something else trains."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundTaker:
    """Calls ``take``, which takes and drops one batch, in a thread, once per ``request``.

    The training never waits for that thread. It takes as many batches as are trained on, even if the host issues all steps of a round long
    before the device is done with them. A loader slower than the training is always behind and never idle.
    """

    def __init__(self, take: Callable[[], object]) -> None:
        self._take = take
        self._pending = self._taken = 0
        self._closing = False
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ddpbench-background", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Take one more batch. Raises what an earlier take has raised."""
        if self._error:
            raise self._error
        with self._changed:
            self._pending += 1
            self._changed.notify()

    def pop_taken(self) -> int:
        """Batches taken since the last call. Drops the backlog, which would run during other steps."""
        with self._changed:
            taken, self._taken, self._pending = self._taken, 0, 0
        return taken

    def close(self, timeout_s: float | None = None) -> None:
        """End the thread, after the batch that it is taking, or abandon it after ``timeout_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if self._closing:
                    return
                self._pending -= 1
            try:
                self._take()
            except Exception as problem:  # the next request raises it
                self._error = problem
                return
            with self._changed:
                self._taken += 1
