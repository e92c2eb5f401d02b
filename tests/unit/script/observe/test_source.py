"""What is known of a script's DataLoader, and of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from ddpbench.script.observe.source import MAX_DEPTH, LoaderSource, dataset_name, num_elements


def received(points: torch.Tensor) -> LoaderSource:
    """The source of a loader without workers that leaves its batches where they are, after two of them."""
    loader = DataLoader(TensorDataset(points), batch_size=None)
    source = LoaderSource.of(loader)
    for batch, _ in zip(loader, range(2), strict=False):
        source.receive(batch)
    return source


def test_batches_of_a_plain_dataset_are_in_pageable_memory() -> None:
    source = received(torch.ones(4, 3))
    assert (source.received, source.pin_memory) == (2, False)


@pytest.mark.cuda
def test_batches_that_a_dataset_pins_are_seen() -> None:
    torch.cuda.init()
    assert received(torch.ones(4, 3).pin_memory()).pin_memory
    assert not received(torch.ones(4, 3, device="cuda")).pin_memory


@dataclass
class Graphs:
    """Keeps its tensors as torch_geometric does: in a mapping of an object of its own."""

    store: Any
    dataset: Any = None


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.ones(4, 3), 12),
        ([torch.ones(4, 3), torch.ones(4)], 16),
        ([{"boxes": torch.ones(2, 4), "size": 7}, {"boxes": torch.ones(1, 4), "size": 9}], 12),
        (Graphs(SimpleNamespace(mapping={"x": torch.ones(5, 2), "edges": torch.ones(2, 9)})), 28),
        (Graphs([torch.ones(3)], dataset=TensorDataset(torch.ones(1000))), 3),
        ([torch.ones(3), list(range(100_000))], 3),
        ("text", 0),
    ],
)
def test_elements_of_a_batch_of_any_class(batch: Any, expected: int) -> None:
    assert num_elements(batch) == expected


def test_elements_of_a_batch_that_holds_itself() -> None:
    batch: list[Any] = [torch.ones(2)]
    batch.append(batch)
    assert num_elements(batch) == 2 * MAX_DEPTH


class Cyclic(Dataset[int]):
    @property
    def dataset(self) -> Cyclic:
        return self


class Unwilling(Dataset[int]):
    @property
    def dataset(self) -> None:
        raise RuntimeError("not yet opened")


POINTS = TensorDataset(torch.ones(4, 3))


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (POINTS, "TensorDataset"),
        (Subset(POINTS, [0, 2]), "Subset of TensorDataset"),
        (Subset(Subset(POINTS, [0, 2]), [1]), "Subset of Subset of TensorDataset"),
        (Cyclic(), "Cyclic of Cyclic of Cyclic"),
        (Unwilling(), "Unwilling"),
        ([1, 2, 3], "list"),
    ],
)
def test_dataset_is_named_with_the_one_in_it(dataset: object, name: str) -> None:
    assert dataset_name(dataset) == name
    assert LoaderSource.of(DataLoader(POINTS)).dataset == "TensorDataset"
