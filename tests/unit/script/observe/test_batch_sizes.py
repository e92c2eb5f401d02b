"""Samples of a batch are those that the sampler drew, whatever its tensors look like: watched, and in a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info
from watched import Training, watched

from ddpbench.data.loaders.indices import num_indices
from ddpbench.script.diagnose.own_loader import SteeredIterator, SteeredLoader, timed_get_iterator
from ddpbench.script.observe.rows import SAMPLES
from ddpbench.script.observe.source import LoaderSource

Parts = list[tuple[torch.Tensor, int]]


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images of different heights."""

    def __init__(self, size: int = 22) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 5 + index % 3, 7), index


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """Eleven samples of each worker."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = get_worker_info()
        yield from ((torch.zeros(6), index) for index in range(11 * (info.num_workers if info else 1)) if not info or index % 2 == info.id)


class Rows(Dataset[torch.Tensor]):
    """Whole batches, by a list of indices or by the number of a batch."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.zeros(2, len(index) if isinstance(index, list) else 4)


class Buckets:
    """Batches with a limited number of tokens, without an attribute for their size."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2, 3, 4], [5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [17, 18], [19, 20])


def lists(parts: Parts) -> Any:
    return [image for image, _ in parts], [label for _, label in parts]


def time_major(parts: Parts) -> Any:
    """The first of the two tensors has the shape (time, batch)."""
    return torch.zeros(13, len(parts)), torch.tensor([label for _, label in parts])


def flat(parts: Parts) -> Any:
    """Nodes of all graphs, and to which each belongs."""
    return {"nodes": torch.cat([image.flatten() for image, _ in parts]), "graphs": torch.tensor([label for _, label in parts])}


FULL = [4, 4, 4, 4, 4, 2]

CASES = {
    "lists": (Images(), {"batch_size": 4, "collate_fn": lists}, FULL),
    "time major": (Images(), {"batch_size": 4, "collate_fn": time_major}, FULL),
    "flat": (Images(), {"batch_size": 4, "collate_fn": flat}, FULL),
    "dropped": (Images(), {"batch_size": 4, "collate_fn": flat, "drop_last": True}, [4, 4, 4, 4, 4]),
    "buckets": (Images(), {"batch_sampler": Buckets(), "collate_fn": flat}, [5, 3, 1, 8, 2, 2]),
    "rows at once": (Rows(), {"batch_size": None, "sampler": BatchSampler(SequentialSampler(range(22)), 4, False)}, FULL),
    "ready batches": (Rows(), {"batch_size": None}, [2] * 10),
    "stream": (Stream(), {"batch_size": 4}, [4, 4, 3]),
    "stream of lists": (Stream(), {"batch_size": 4, "collate_fn": lists}, [4, 4, 3]),
    "stream, time major": (Stream(), {"batch_size": 4, "collate_fn": time_major}, [4, 4, 3]),
    "stream without batches": (Stream(), {"batch_size": None}, [6] * 11),
}


def expected(case: str, workers: int) -> list[int]:
    sizes = CASES[case][2]
    return [size for size in sizes for _ in range(workers)] if workers and case.startswith("stream") else sizes


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_watched_batches_have_the_samples_that_were_drawn(case: str, workers: int) -> None:
    dataset, arguments, _ = CASES[case]
    with watched() as seen:
        training, loader = Training(), DataLoader(dataset, num_workers=workers, **arguments)
        for _ in range(2):
            for _ in loader:
                training.step([torch.zeros(1, 8)])
    assert [int(row[SAMPLES]) for row in seen.rows if row[SAMPLES]][: len(expected(case, workers))] == expected(case, workers)


class Own:
    def choose(self, iterator: SteeredIterator) -> Any:
        return iterator.next_own()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_batches_of_a_diagnosis_have_the_samples_that_were_drawn(case: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", timed_get_iterator(DataLoader._get_iterator))
    dataset, arguments, _ = CASES[case]
    loader: DataLoader[Any] = DataLoader(dataset, num_workers=workers, **arguments)
    iterator = SteeredIterator(loader, iter(loader), LoaderSource.of(loader), SteeredLoader(), loader.__iter__, Own())
    assert [iterator.samples for _ in iterator] == expected(case, workers)
    stats = iterator.steered.pop_stats()
    assert stats is not None
    timed = expected(case, workers)[workers:]  # the first batch of each worker is not typical
    assert stats.samples == sum(timed), "costs per sample divide by the same number"
    again = SteeredIterator(loader, iter(loader), iterator.source, iterator.steered, loader.__iter__, Own())
    assert [again.drop_own() for _ in range(3)] == expected(case, workers)[:3]
    assert again.samples is None, "of a batch that the script did not get"


def test_persistent_workers_begin_a_new_epoch_after_one_that_was_left() -> None:
    with watched() as seen:
        training = Training()
        loader = DataLoader(Images(), batch_sampler=Buckets(), collate_fn=flat, num_workers=2, persistent_workers=True)
        for _ in range(3):
            for number, _ in enumerate(loader):
                training.step([torch.zeros(1, 8)])
                if number == 2:
                    break
    assert [int(row[SAMPLES]) for row in seen.rows][-2:] == [5, 3]


def test_a_sample_that_cannot_be_loaded_shifts_no_sizes() -> None:
    class Damaged(Images):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == 6:
                raise ValueError("damaged")
            return super().__getitem__(index)

    for workers in (0, 2):
        with watched() as seen:
            training = Training()
            iterator = iter(DataLoader(Damaged(), batch_sampler=Buckets(), collate_fn=flat, num_workers=workers))
            for _ in range(6):
                try:
                    next(iterator)
                except ValueError:
                    continue
                training.step([torch.zeros(1, 8)])
        assert [int(row[SAMPLES]) for row in seen.rows][-2:] == [8, 2]


def test_random_state_is_that_of_the_script_alone() -> None:
    def order() -> list[list[int]]:
        torch.manual_seed(3)
        return [batch[1].tolist() for batch in DataLoader(Images(), 4, shuffle=True, collate_fn=time_major, num_workers=2)]

    alone = order()
    with watched():
        assert order() == alone


class InfiniteLoader(DataLoader[Any]):
    """Keeps one iterator, as that of ultralytics."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        object.__setattr__(self, "iterator", super().__iter__())

    def __iter__(self) -> Iterator[Any]:
        for _ in range(5):
            yield next(self.iterator)  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_that_takes_its_batches_from_its_own_iterator(workers: int) -> None:
    with watched() as seen:
        training, loader = Training(), InfiniteLoader(Images(), batch_sampler=Buckets(), collate_fn=flat, num_workers=workers)
        for _ in loader:
            training.step([torch.zeros(1, 8)])
    assert [int(row[SAMPLES]) for row in seen.rows] == [5, 3, 1, 8, 2]


def test_indices_are_counted() -> None:
    assert num_indices([3, 1, 2], is_batch=True) == 3
    assert num_indices([(3, 320), (1, 320)], is_batch=True) == 2
    assert num_indices([[3, 1, 2]], is_batch=True) == 3, "of a batch sampler over another one"
    assert num_indices(torch.tensor([3, 1]), is_batch=False) == 2
    assert num_indices([None, None], is_batch=True) is None
    assert num_indices((0, 5), is_batch=False) is None
    assert num_indices(7, is_batch=False) is None
    assert num_indices(iter([1, 2]), is_batch=True) is None
