"""Workers that hang or die during fork."""

from __future__ import annotations

import os

import psutil
import pytest
import torch
from hanging_forks import hanging_forks
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.data.loaders import start_workers as module
from ddpbench.data.loaders.start_workers import start_workers
from ddpbench.record.errors import BenchError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT_S", 1.0)


def loader(workers: int, **more: object) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=workers, **more)  # type: ignore[arg-type]


def test_workers_are_restarted_if_one_does_not_start(one_second: None, capfd: pytest.CaptureFixture[str]) -> None:
    with hanging_forks(1):
        stream, workers = start_workers(loader(2), "")
    assert [batch.tolist() for (batch,) in stream] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(workers) == 2
    assert "a loader worker did not start within 1 s; restarting all workers" in capfd.readouterr().err
    assert [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_workers_that_never_start_are_an_error(one_second: None) -> None:
    with hanging_forks(100), pytest.raises(BenchError, match="did not start within 1 s in 3 attempts"):
        start_workers(loader(1), "is the machine overloaded?")


@pytest.mark.slow
def test_dead_worker_raises_on_the_next_batch() -> None:
    assert list(loader(1))  # a DataLoader of the user's code installs torch's SIGCHLD handler, which would raise at any point
    stream, (worker,) = start_workers(loader(1, worker_init_fn=lambda number: os._exit(3)), "")
    with pytest.raises(RuntimeError):
        next(stream)
    worker.join()
    assert worker.exitcode == 3
