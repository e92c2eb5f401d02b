"""What a window measures besides its steps."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from ddpbench.record.roles import BASELINE
from ddpbench.script.diagnose.measurement import LoaderInUse, Measurement, NoLoader
from ddpbench.script.diagnose.own_loader import SteeredLoader
from ddpbench.script.diagnose.stage import Stage
from ddpbench.script.observe.outside import OutsideTime

BUSY_S = 0.3


def be_busy() -> None:
    while time.process_time() < BUSY_S:
        pass


class OwnLoader(SteeredLoader):
    """A loader of the script with one worker."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        super().__init__()
        self.process = process

    def worker_pids(self) -> list[int]:
        return [self.process.pid or 0] if self.process.is_alive() else []


@pytest.mark.parametrize(("is_own", "starts_in_window", "is_counted"), [(True, True, True), (True, False, False), (False, False, False)])
def test_cpu_seconds_include_own_workers_that_end_with_an_epoch(is_own: bool, starts_in_window: bool, is_counted: bool) -> None:
    process = multiprocessing.get_context("fork").Process(target=be_busy)
    loader: LoaderInUse = OwnLoader(process) if is_own else NoLoader()
    if not starts_in_window:
        process.start()
        time.sleep(2 * BUSY_S)
    measurement = Measurement(Stage(kind="window", first=0, batches=10, role=BASELINE), 0, loader, OutsideTime())
    if starts_in_window:
        process.start()
    process.join()
    used_s = 10 * measurement.finish(b"").cpu_s
    assert (used_s >= 0.9 * BUSY_S) == is_counted


def test_cpu_seconds_of_validation_and_of_its_workers_are_left_out() -> None:
    outside, worker = OutsideTime(), multiprocessing.get_context("fork").Process(target=be_busy)
    measurement = Measurement(Stage(kind="window", first=0, batches=10, role=BASELINE), 0, SteeredLoader(), outside)
    outside.enter("validation")
    worker.start()
    end_s = time.process_time() + BUSY_S
    while time.process_time() < end_s:
        pass
    worker.join()
    outside.leave()
    end_s = time.process_time() + BUSY_S
    while time.process_time() < end_s:
        pass
    assert 0.8 * BUSY_S <= 10 * measurement.finish(b"").cpu_s <= 1.6 * BUSY_S
