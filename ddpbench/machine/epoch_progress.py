"""Reports the current epoch of a long round while the round is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddpbench.machine.progress_marker import ProgressMarker

POLL_S = 1.0
"""Seconds between two looks at the step. A round that ends sooner reports no epoch."""

MIN_REPORT_INTERVAL_S = 20.0
"""Minimum seconds between two reports, so that short epochs do not fill a log."""


@contextmanager
def epoch_progress(marker: ProgressMarker, steps_per_epoch: int, epochs: int, report: Callable[[str], None]) -> Iterator[None]:
    """Call ``report("epoch 3 of 25")`` from a thread during a round, which begins with the next step.

    The thread reads the step from ``marker``: the training loop itself neither reports nor waits for the device.
    """
    first_step, finished = marker.step, threading.Event()

    def watch() -> None:
        last, wait_s = 0, POLL_S
        while not finished.wait(wait_s):
            epoch, wait_s = min(epochs, (marker.step - first_step) // steps_per_epoch + 1), POLL_S
            if epoch != last:
                report(f"epoch {epoch} of {epochs}")
                last, wait_s = epoch, MIN_REPORT_INTERVAL_S

    thread = threading.Thread(target=watch, name="ddpbench-epochs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
