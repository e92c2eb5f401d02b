"""Trainings in the process of the test, with the hooks of a watched script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.script.observe.hooks import Hooks, hooked
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.rows import Rows, to_rows

FEATURES, CLASSES, BATCH = 8, 4, 4


@dataclass
class Watched:
    """What was observed; complete after the block of ``watched``."""

    observer: Observer
    hooks: Hooks
    first_batches: list[int] = field(default_factory=list)  # number of steps at each call of on_first_batch

    @property
    def rows(self) -> Rows:
        return to_rows(self.observer.steps.rows[:])


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch the block as a script."""
    seen: list[Watched] = []
    observer = Observer(lambda: seen[0].first_batches.append(observer.num_batches))
    with hooked(observer) as hooks:
        seen.append(Watched(observer, hooks))
        yield seen[0]
        observer.finish()


def points(batches: int) -> TensorDataset:
    return TensorDataset(torch.randn(batches * BATCH, FEATURES), torch.zeros(batches * BATCH, dtype=torch.long))


class Training:
    """A model with its optimizer."""

    def __init__(self) -> None:
        self.model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def backward(self, x: torch.Tensor) -> None:
        nn.functional.cross_entropy(self.model(x), torch.zeros(len(x), dtype=torch.long)).backward()

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.backward(batch[0])
        self.optimizer.step()

    def train(self, batches: Iterable[Any]) -> None:
        for batch in batches:
            self.step(batch)


def loader(batches: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(points(batches), BATCH, **options)
