"""Workers that yield each other's batches, as a watched script gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from watched import FEATURES, Training, watched

from ddpbench.record.script import SampleComparison

BATCH = 4


class Stream(IterableDataset[Any]):
    """The worker that reads it gets ``first(worker)`` and every ``step``-th sample after it."""

    def __init__(self, first: Callable[[int], int], step: int, sample: Callable[[int], Any]) -> None:
        self.first, self.step, self.sample = first, step, sample

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for index in range(self.first(info.id if info else 0), 10**6, self.step):
            yield self.sample(index)


def numbered(index: int) -> Any:
    return torch.full((FEATURES,), float(index)), index % 4


def found(stream: Stream, workers: int = 3, **options: Any) -> SampleComparison | None:
    with watched() as seen:
        loader = DataLoader(stream, BATCH, num_workers=workers, **options)
        Training().train(batch for batch, _ in zip(loader, range(12), strict=False))
    return seen.observer.repeated_workers.comparison


def test_repeated_batches_are_noticed() -> None:
    assert found(Stream(lambda worker: 0, 1, numbered)) == SampleComparison(workers=3, samples=24, different=16, is_stream=True)


@pytest.mark.parametrize(
    "stream",
    [
        Stream(lambda worker: worker, 3, numbered),
        Stream(lambda worker: 1000 * worker, 1, numbered),  # whose labels are the same
        Stream(lambda worker: 0, 1, lambda index: (torch.rand(FEATURES), index % 4)),  # unknown
        Stream(lambda worker: 0, 1, lambda index: (torch.zeros(FEATURES), 0)),  # unknown
    ],
)
def test_divided_random_and_constant_streams_are_not_accused(stream: Stream) -> None:
    assert found(stream) is None


def test_one_worker_repeats_no_other() -> None:
    assert found(Stream(lambda worker: 0, 1, numbered), workers=1) is None
    assert found(Stream(lambda worker: 0, 1, numbered), workers=0) is None


def test_turns_of_workers_are_unknown_out_of_order() -> None:
    assert found(Stream(lambda worker: 0, 1, numbered), in_order=False) is None
