"""What a window measures besides its steps."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from ddpbench.record.roles import BASELINE
from ddpbench.script.diagnose.measurement import Measurement
from ddpbench.script.diagnose.stage import Stage

BUSY_S = 0.3


def be_busy() -> None:
    while time.process_time() < BUSY_S:
        pass


class Workers:
    """A loader with one worker."""

    def __init__(self) -> None:
        self.process = multiprocessing.get_context("fork").Process(target=be_busy)

    def worker_pids(self) -> list[int]:
        return [self.process.pid or 0] if self.process.is_alive() else []

    def pop_stats(self) -> None:
        return None


@pytest.mark.parametrize("ends_in_window", [True, False])
def test_cpu_seconds_include_workers_that_end_with_an_epoch(ends_in_window: bool) -> None:
    loader = Workers()
    if not ends_in_window:
        loader.process.start()
        loader.process.join()
    measurement = Measurement(Stage(kind="window", first=0, batches=10, role=BASELINE), 0, loader)
    if ends_in_window:
        loader.process.start()
        loader.process.join()
    used_s = 10 * measurement.finish(b"").cpu_s
    assert (used_s >= 0.9 * BUSY_S) == ends_in_window
