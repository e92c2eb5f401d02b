"""The DataLoader of a trial: the same samples, in other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.prediction import Scenario
from ddpbench.script.diagnose import trial_loader
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.trial_loader import BATCH_TIMEOUT_S, EndlessSampler, OpenTrial, open_resident, open_trial

NUMBERS, FILES = TensorDataset(torch.arange(12)), SharedFiles()
ROOM = WorkerMemory(batch_bytes=0, shm_bytes=2**30, memory_bytes=2**40)


def taken(loader: DataLoader[Any], number: int) -> list[list[int]]:
    return [batch[0].tolist() for batch in islice(iter(loader), number)]


def test_begins_in_the_middle_and_never_ends() -> None:
    trial = open_trial(DataLoader(NUMBERS, batch_size=3), Scenario(workers=0), ROOM, FILES)
    assert taken(trial, 6) == [[6, 7, 8], [9, 10, 11], [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_sampler_that_draws_slowly_is_not_skipped_to_the_middle() -> None:
    assert list(islice(EndlessSampler(range(8), max_skip_s=0), 10)) == [*range(8), 0, 1]
    assert list(islice(EndlessSampler(range(8)), 6)) == [4, 5, 6, 7, 0, 1]
    used_once = iter(range(3))
    assert list(EndlessSampler(used_once)) == [0, 1, 2]
    assert list(EndlessSampler([])) == []


def test_arguments_are_those_of_the_scenario_and_else_of_the_script() -> None:
    own = DataLoader(NUMBERS, batch_size=3, num_workers=1, prefetch_factor=3, drop_last=True)
    trial = open_trial(own, Scenario(workers=2), ROOM, FILES)
    assert (trial.num_workers, trial.prefetch_factor, trial.persistent_workers, trial.pin_memory) == (2, 3, True, False)
    assert open_trial(own, Scenario(prefetch=6, pin_memory=True), ROOM, FILES).prefetch_factor == 6
    assert open_trial(own, Scenario(workers=0), ROOM, FILES).prefetch_factor is None
    assert open_trial(DataLoader(NUMBERS), Scenario(workers=1), ROOM, FILES).prefetch_factor == 2


@pytest.mark.parametrize(
    ("own_workers", "scenario", "is_rebuilt", "is_kept"),
    [
        (1, Scenario(workers=2), False, True),
        (1, Scenario(workers=2), True, False),
        (0, Scenario(workers=2), False, True),
        (1, Scenario(prefetch=4), False, False),
        (2, Scenario(persistent_workers=True), False, True),
        (2, Scenario(persistent_workers=True), True, False),
    ],
)
def test_workers_are_kept_as_in_the_advised_call(own_workers: int, scenario: Scenario, is_rebuilt: bool, is_kept: bool) -> None:
    own = DataLoader(NUMBERS, num_workers=own_workers)
    assert open_trial(own, scenario, ROOM, FILES, is_rebuilt).persistent_workers == is_kept


class ProcessIds(Dataset[int]):
    """Samples that say which process loaded them."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize("keeps_workers", [True, False])
def test_trial_of_whole_epochs_starts_its_workers_with_the_epoch(keeps_workers: bool) -> None:
    trial = OpenTrial(DataLoader(ProcessIds(), num_workers=1, persistent_workers=keeps_workers), whole_epochs=True)
    assert trial.worker_pids() == []
    assert trial.is_between_epochs(is_first_batch=False)
    pids = []
    for _ in range(2):
        trial.restart()
        pids.append({int(next(trial)) for _ in range(2)})
        assert not trial.is_between_epochs(is_first_batch=False)
        assert trial.is_between_epochs(is_first_batch=True)
    assert (pids[0] == pids[1]) == keeps_workers


class Pair(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from (3, 4)


@pytest.mark.parametrize("workers", [0, 1])
def test_trial_of_a_stream_goes_on_after_its_end(workers: int) -> None:
    own: DataLoader[int] = DataLoader(Pair(), batch_size=None)
    trial = OpenTrial(open_trial(own, Scenario(workers=workers), ROOM, FILES), whole_epochs=False)
    for _ in range(2):
        assert [int(next(trial)) for _ in range(2)] == [3, 4]
        with pytest.raises(StopIteration):
            next(trial)
        trial.restart()


@pytest.mark.parametrize("timeout", [0, 5, 300])
def test_trial_waits_for_a_batch_no_longer_than_its_own_timeout(timeout: int) -> None:
    trial = open_trial(DataLoader(NUMBERS, num_workers=1, timeout=timeout), Scenario(workers=2), ROOM, FILES)
    assert trial.timeout == (5 if timeout == 5 else BATCH_TIMEOUT_S)


def test_sampler_of_the_script_is_left_alone() -> None:
    sampler = DistributedSampler(NUMBERS, num_replicas=2, rank=0, shuffle=True)
    own = DataLoader(NUMBERS, batch_size=3, sampler=sampler)
    trial = open_trial(own, Scenario(workers=0), ROOM, FILES)
    sampler.set_epoch(5)
    sampled = [index for batch in taken(trial, 3)[1:] for index in batch]
    assert sorted(sampled) == sorted(DistributedSampler(NUMBERS, num_replicas=2, rank=0, shuffle=True)), "those of epoch 0"
    assert sampler.epoch == 5


def test_batches_must_fit_in_shared_memory() -> None:
    with pytest.raises(ConfigFailed, match=r"hold up to 16 batches, .* GiB; /dev/shm has room for 1 GiB"):
        open_trial(DataLoader(NUMBERS), Scenario(workers=8), msgspec.structs.replace(ROOM, batch_bytes=2**50), FILES)


def test_workers_must_fit_in_memory() -> None:
    with pytest.raises(ConfigFailed, match="GiB of memory; half of what is free is"):
        open_trial(DataLoader(NUMBERS), Scenario(workers=8), msgspec.structs.replace(ROOM, worker_bytes=2**50), FILES)


class CountingSampler:
    """Draws slowly, and counts."""

    drawn = 0

    def __init__(self, length: int | None) -> None:
        self._length = length

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            for number in range(self._length or 4):
                CountingSampler.drawn += 1
                yield [number]
            if self._length:
                return


def test_ready_indices_are_drawn_before_and_then_others_of_the_same_number() -> None:
    """What has been read once lies in the page cache. The random state of the script stays."""
    CountingSampler.drawn = 0
    own = DataLoader(NUMBERS, batch_sampler=CountingSampler(5))
    trial = open_trial(own, Scenario(ready_indices=True), ROOM, FILES)
    assert CountingSampler.drawn == 5
    first, *others = ([number for (number,) in taken(trial, 9)] for _ in range(9))
    assert first == [0, 1, 2, 3, 4]
    assert {len(each) for each in others} == {5}
    assert {number for each in others for number in each} > {0, 11}
    assert CountingSampler.drawn == 5
    sampler = trial.batch_sampler
    assert isinstance(sampler, trial_loader.ReadyIndices)
    before = torch.get_rng_state()
    assert len(list(sampler)) == len(sampler) == 5
    assert torch.equal(before, torch.get_rng_state())


def test_indices_that_are_no_numbers_come_again() -> None:
    pairs = [[(1, 2)], [(3, 4)]]
    ready = trial_loader.ReadyIndices(pairs, num_samples=12)
    assert [list(ready) for _ in range(2)] == [pairs, pairs]


def test_ready_indices_without_end_are_drawn_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_loader, "MAX_DRAW_S", 0.0)
    CountingSampler.drawn = 0
    trial = open_trial(DataLoader(NUMBERS, batch_sampler=CountingSampler(None)), Scenario(ready_indices=True), ROOM, FILES)
    assert [len(batch) for batch in taken(trial, 3)] == [1, 1, 1]
    assert CountingSampler.drawn == 1


def test_resident_data_begin_in_the_middle_like_any_trial() -> None:
    own = DataLoader(NUMBERS, batch_size=3, num_workers=2)
    trial = open_resident(own, torch.device("cpu"))
    assert trial.num_workers == 0
    assert taken(trial, 6) == [[6, 7, 8], [9, 10, 11], [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert taken(open_resident(own, torch.device("cpu"), whole_epochs=True), 6) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
