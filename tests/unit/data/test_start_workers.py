"""Workers that hang or die during fork."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.data.loaders import start_workers as module
from ddpbench.data.loaders.start_workers import start_workers
from ddpbench.record.errors import BenchError

hanging: list[int] = []
"""Its only element is the number of next children that hang."""

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def forks_that_hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Make a chosen number of forked children hang, as if a lock had been held by a missing thread."""
    monkeypatch.setattr(module, "START_TIMEOUT_S", 1.0)
    if not hanging:
        os.register_at_fork(before=_count, after_in_child=_hang)
    hanging[:] = [0]
    yield hanging
    hanging[:] = [0]


def _count() -> None:
    if hanging:
        hanging[0] -= 1


def _hang() -> None:
    if hanging and hanging[0] >= 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(600)


def loader(workers: int, **more: object) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=workers, **more)  # type: ignore[arg-type]


def test_workers_are_restarted_if_one_does_not_start(forks_that_hang: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    forks_that_hang[0] = 1
    stream, workers = start_workers(loader(2), "")
    assert [batch.tolist() for (batch,) in stream] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(workers) == 2
    assert "a loader worker did not start within 1 s; restarting all workers" in capfd.readouterr().err
    assert [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_workers_that_never_start_are_an_error(forks_that_hang: list[int]) -> None:
    forks_that_hang[0] = 100
    with pytest.raises(BenchError, match="did not start within 1 s in 3 attempts"):
        start_workers(loader(1), "is the machine overloaded?")


@pytest.mark.slow
def test_dead_worker_raises_on_the_next_batch() -> None:
    assert list(loader(1))  # a DataLoader of the user's code installs torch's SIGCHLD handler, which would raise at any point
    stream, (worker,) = start_workers(loader(1, worker_init_fn=lambda number: os._exit(3)), "")
    with pytest.raises(RuntimeError):
        next(stream)
    worker.join()
    assert worker.exitcode == 3
