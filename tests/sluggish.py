"""A loader that takes DELAY_S for every batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ddpbench.data.catalogue import LoaderSpec
from ddpbench.data.loader import Batch
from ddpbench.data.synthetic import open_synthetic

DELAY_S = float(os.environ.get("DELAY_S", "0.05"))


class Sluggish:
    in_flight = 0

    def __init__(self, resident: Any) -> None:
        self._resident = resident
        self.data = msgspec.structs.replace(resident.data, loader="sluggish")

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        time.sleep(DELAY_S)
        return self._resident.next_batch(in_hand)

    def loading(self) -> None:
        return None

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._resident.close()


def open_sluggish(*where: Any) -> Sluggish:
    return Sluggish(open_synthetic(*where))


sluggish = LoaderSpec(
    name="sluggish", help="a slow one", open="sluggish:open_sluggish", reads_files=False, on_device=True, datasets=("cifar10",)
)
