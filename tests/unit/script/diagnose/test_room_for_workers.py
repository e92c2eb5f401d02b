"""Room in shared memory for the workers of a trial, beside or in place of those of the script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from steered_loaders import steer, timed_loaders
from torch import arange
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.prediction import Scenario
from ddpbench.script.diagnose.own_loader import SteeredIterator
from ddpbench.script.diagnose.trial_loader import OpenTrial
from ddpbench.script.diagnose.worker_memory import make_room

pytestmark = pytest.mark.usefixtures(timed_loaders.__name__)


@pytest.fixture
def iterator() -> Iterator[SteeredIterator]:
    """Over a loader with one worker, which prefetches two batches, beside the trial of another with one, which prefetches one."""
    found = steer(loading(workers=1))
    found.steered.trials[Scenario(workers=1)] = OpenTrial(loading(workers=1, prefetch=1), whole_epochs=True)
    yield found
    found.end_workers()


def loading(workers: int, prefetch: int = 2) -> DataLoader[Any]:
    return DataLoader(TensorDataset(arange(8)), num_workers=workers, prefetch_factor=prefetch if workers else None)


def room_for(batches: int) -> WorkerMemory:
    return WorkerMemory(batch_bytes=10, shm_bytes=10 * batches, memory_bytes=10**6)


@pytest.mark.parametrize(("batches", "ends"), [(11, False), (10, True)])
def test_own_workers_end_if_their_batches_and_those_of_a_trial_do_not_fit(iterator: SteeredIterator, batches: int, ends: bool) -> None:
    """The trial needs six; the script's own three, with the one that its worker has inherited, and the other trial two."""
    (pid,) = iterator.steered.worker_pids()
    assert make_room(iterator, loading(workers=3), room_for(batches)) == ends
    assert iterator.steered.worker_pids() == ([] if ends else [pid])
    assert len(iterator.steered.trials) == (0 if ends else 1)


def test_trial_without_workers_needs_no_room(iterator: SteeredIterator) -> None:
    assert not make_room(iterator, loading(workers=0), room_for(0))
    assert len(iterator.steered.worker_pids()) == 1


def test_own_workers_stay_if_the_size_of_shared_memory_is_unknown(iterator: SteeredIterator) -> None:
    assert not make_room(iterator, loading(workers=8), WorkerMemory(batch_bytes=10, memory_bytes=10**6))


def test_closed_trial_has_no_workers_even_if_something_still_holds_it() -> None:
    trial = OpenTrial(loading(workers=1), whole_epochs=False)
    held, (pid,) = trial, trial.worker_pids()
    next(trial)
    trial.close(may_hang=True)
    assert held.worker_pids() == []
    assert not psutil.pid_exists(pid)
