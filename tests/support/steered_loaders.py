"""DataLoaders as a diagnosis sees them, for a loop that gets their own batches only."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from ddpbench.script.diagnose.own_loader import SteeredIterator, SteeredLoader, timed_get_iterator
from ddpbench.script.observe.source import LoaderSource


class OwnBatches:
    def choose(self, iterator: SteeredIterator) -> Any:
        return iterator.next_own()


def steer(loader: DataLoader[Any]) -> SteeredIterator:
    restart = loader.__iter__
    return SteeredIterator(loader, restart(), LoaderSource.of(loader), SteeredLoader(), restart, OwnBatches())


@pytest.fixture
def timed_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", timed_get_iterator(DataLoader._get_iterator))
