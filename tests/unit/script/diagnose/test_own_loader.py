"""What a script iterates over in a diagnosis: as many batches as its own loader has, timed in the workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from time import sleep
from typing import Any

import psutil
import pytest
import torch
from hanging_forks import hanging_forks
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from ddpbench.data.loaders.start_workers import is_forked
from ddpbench.script.diagnose import own_loader
from ddpbench.script.diagnose.own_loader import SteeredIterator, SteeredLoader, TimedIterator, timed_get_iterator
from ddpbench.script.observe.source import LoaderSource


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """Numbers up to ``end``, which a ``worker_init_fn`` may set, divided among the workers."""

    end = 6

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(info.id if info else 0, self.end, info.num_workers if info else 1)


class Chooser:
    """Gives the loader's own batches, except for the numbers in ``replaced``."""

    def __init__(self, *replaced: int) -> None:
        self.replaced, self.may_end = replaced, True

    def choose(self, iterator: SteeredIterator) -> Any:
        return "repeated" if iterator.num_given in self.replaced else iterator.next_own(self.may_end)


def steered(loader: DataLoader[Any], chooser: Chooser) -> SteeredIterator:
    restart = loader.__iter__
    return SteeredIterator(loader, restart(), LoaderSource.of(loader), SteeredLoader(), restart, chooser)


@pytest.fixture
def timed_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", timed_get_iterator(DataLoader._get_iterator))


@pytest.mark.parametrize("are_kept", [False, True])
def test_workers_that_were_ended_start_again_with_the_next_batch(are_kept: bool, timed_loaders: None) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=2, num_workers=1, persistent_workers=are_kept)
    iterator = steered(loader, Chooser())
    assert next(iterator).tolist() == [0, 1]
    (pid,) = iterator.steered.worker_pids()
    iterator.end_workers()
    assert not psutil.pid_exists(pid)
    assert iterator.steered.worker_pids() == []
    assert next(iterator).tolist() == [0, 1]
    assert len(list(iterator)) == 4, "as many as without"
    assert len(list(loader)) == 6


def test_epoch_has_as_many_batches_as_without_a_diagnosis() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=2)
    assert len(list(steered(loader, Chooser()))) == 6
    assert len(list(steered(loader, Chooser(1, 2, 5)))) == 6
    assert list(steered(loader, Chooser(*range(6)))) == ["repeated"] * 6


def test_drained_batches_do_not_count() -> None:
    chooser = Chooser()
    chooser.may_end = False
    iterator = steered(DataLoader(Numbers(), batch_size=2), chooser)
    for _ in range(20):
        iterator.drop_own()
    assert len(list(iterator)) == 6


def test_loader_without_length_ends_where_it_would_until_it_must_not() -> None:
    loader: DataLoader[Any] = DataLoader(Stream(), batch_size=2)
    steered_loader, chooser = SteeredLoader(), Chooser()
    source = LoaderSource.of(loader)
    first = SteeredIterator(loader, iter(loader), source, steered_loader, loader.__iter__, chooser)
    assert len(list(first)) == steered_loader.num_batches == 3
    chooser.may_end = False
    drained = SteeredIterator(loader, iter(loader), source, steered_loader, loader.__iter__, chooser)
    for _ in range(4):
        drained.drop_own()
    assert len(list(drained)) == 3, "as many as the epoch before"
    unknown = SteeredIterator(loader, iter(loader), source, SteeredLoader(), loader.__iter__, chooser)
    assert len(list(islice(unknown, 10))) == 10


class Endless:
    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield [0, 1]


class WithEpochs(DataLoader[Any]):
    """Takes the batches of its epochs from one iterator that never ends."""

    def __len__(self) -> int:
        return 6


@pytest.mark.parametrize("loader_class", [DataLoader, WithEpochs])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.usefixtures("timed_loaders")
def test_iterator_that_never_ends_is_not_cut_off(loader_class: type[DataLoader[Any]], workers: int) -> None:
    loader = loader_class(Numbers(), batch_sampler=Endless(), num_workers=workers)  # type: ignore[arg-type]
    assert len(list(islice(steered(loader, Chooser(1, 2)), 50))) == 50


@pytest.mark.parametrize(("persistent", "is_kept"), [(True, True), (False, False)])
@pytest.mark.usefixtures("timed_loaders")
def test_epoch_starts_only_once_if_its_workers_are_kept(persistent: bool, is_kept: bool) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=2, num_workers=1, persistent_workers=persistent)
    source, steered_loader = LoaderSource.of(loader), SteeredLoader()
    for _ in range(2):
        list(SteeredIterator(loader, iter(loader), source, steered_loader, loader.__iter__, Chooser()))
    first, second = steered_loader.epoch_starts_s
    assert first > 0
    assert (second == 0) == is_kept


@pytest.mark.usefixtures("timed_loaders")
def test_epochs_of_an_endless_iterator_have_one_start() -> None:
    loader = WithEpochs(Numbers(), batch_sampler=Endless(), num_workers=1)  # type: ignore[arg-type]
    iterator = steered(loader, Chooser())
    for _ in range(13):
        next(iterator)
    first, *others = iterator.steered.epoch_starts_s
    assert first > 0
    assert others == [0, 0], "of the second and third six batches"


def test_workers_end_with_the_iterator_of_the_script() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=2, num_workers=1)
    steered_loader = SteeredLoader()
    iterator = SteeredIterator(loader, iter(loader), LoaderSource.of(loader), steered_loader, loader.__iter__, Chooser(1))
    next(iterator)
    (worker,) = iterator.own._workers
    assert steered_loader.iterator is iterator
    del iterator
    worker.join(20)
    assert not worker.is_alive()
    assert steered_loader.iterator is None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("timed_loaders")
def test_batches_are_those_of_the_script(workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8), torch.arange(8) * 2), batch_size=4, num_workers=workers)
    iterator = iter(loader)
    assert isinstance(iterator, TimedIterator)
    assert [[part.tolist() for part in batch] for batch in iterator] == [[[0, 1, 2, 3], [0, 2, 4, 6]], [[4, 5, 6, 7], [8, 10, 12, 14]]]
    stats = iterator.pop_stats()
    assert stats is not None
    assert stats.samples == 8
    assert set(stats.cpu_s) == {"sample", "collate"}
    assert len(stats.batch_ms) == 2
    assert len(iterator.worker_pids()) == workers
    assert isinstance(loader.dataset, TensorDataset), "the loader itself is as before"


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.usefixtures("timed_loaders")
def test_iterable_datasets_are_timed(batch_size: int | None) -> None:
    iterator = iter(DataLoader(Stream(), batch_size=batch_size, num_workers=2))
    batches = [each.tolist() if isinstance(each, torch.Tensor) else each for each in iterator]
    assert batches == ([[0, 2], [1, 3], [4], [5]] if batch_size else [0, 1, 2, 3, 4, 5])
    stats = iterator.pop_stats()
    assert stats is not None
    assert {"sample", "collate"} <= set(stats.cpu_s)


def shorten(worker: int) -> None:
    """As documented for IterableDataset: a ``worker_init_fn`` that changes the dataset of its worker."""
    info = get_worker_info()
    assert info is not None
    info.dataset.end = 2


@pytest.mark.usefixtures("timed_loaders")
def test_worker_init_fn_reaches_the_dataset() -> None:
    loader = DataLoader(Stream(), batch_size=None, num_workers=2, worker_init_fn=shorten)
    assert list(loader) == [0, 1]


@pytest.mark.usefixtures("timed_loaders")
def test_persistent_workers_stay() -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, persistent_workers=True)
    first = iter(loader)
    assert len(list(first)) == 6
    pids = first.worker_pids()
    second = iter(loader)
    assert len(list(second)) == 6
    assert second.worker_pids() == pids


def set_attribute(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 100


class Shifted(Numbers):
    offset = 0

    def __getitem__(self, index: int) -> int:
        return index + self.offset


@pytest.mark.usefixtures("timed_loaders")
def test_worker_init_fn_may_set_attributes_of_a_dataset() -> None:
    loader = DataLoader(Shifted(), batch_size=None, num_workers=1, worker_init_fn=set_attribute)
    assert next(iter(loader)) == 100


def test_worker_that_hangs_in_its_fork_is_started_again(timed_loaders: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_loader, "START_TIMEOUT_S", 1.0)
    began: list[int] = []
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=2, shuffle=True, num_workers=2, worker_init_fn=began.append)
    torch.manual_seed(1)
    expected = [batch.tolist() for batch in loader]
    torch.manual_seed(1)
    with hanging_forks(1) as left:
        assert [batch.tolist() for batch in loader] == expected
        assert left == [1 - 4], "both workers were forked twice"
    assert loader.worker_init_fn == began.append


@pytest.mark.parametrize(("context", "expected"), [(None, sys.version_info < (3, 14)), ("fork", True), ("spawn", False)])
def test_start_method_of_a_loader_is_known(context: str | None, expected: bool) -> None:
    assert is_forked(DataLoader(Numbers(), num_workers=1, multiprocessing_context=context)) == expected


class SlowSampler:
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(4):
            sleep(0.02)
            yield [number]


@pytest.mark.usefixtures("timed_loaders")
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_time_to_draw_indices_is_counted_in_every_epoch(options: dict[str, Any]) -> None:
    """But for those of its first batch, for which a script waits before its first step; workers get two batches then."""
    loader = DataLoader(Numbers(), batch_sampler=SlowSampler(), **options)
    drawn = 1 if options else 3
    for _ in range(2):
        iterator = iter(loader)
        assert len(list(iterator)) == 4
        stats = iterator.pop_stats()
        assert stats is not None
        assert stats.sampler_s is not None
        assert stats.sampler_s >= drawn * 0.02
