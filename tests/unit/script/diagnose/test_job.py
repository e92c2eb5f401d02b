"""Which steps of a window count."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from ddpbench.record.roles import BASELINE, COMPUTE_ONLY
from ddpbench.script.diagnose.job import counted_steps
from ddpbench.script.diagnose.stage import Stage
from ddpbench.script.observe.rows import NUMBER, ROW_LENGTH, STRETCH, UPDATES, Rows


def rows_of(epochs: Sequence[int], batches_per_update: int) -> Rows:
    """Steps of epochs with that many batches."""
    rows = np.zeros((sum(epochs), ROW_LENGTH))
    rows[:, NUMBER], rows[:, STRETCH] = np.arange(len(rows)), np.repeat(np.arange(len(epochs)), epochs)
    rows[batches_per_update - 1 :: batches_per_update, UPDATES] = 1
    return rows


@pytest.mark.parametrize(
    ("epochs", "workers", "batches_per_update", "expected"),
    [
        ([200], 4, 1, [*range(60, 90)]),
        ([20, 50, 50], 4, 1, [*range(60, 70), *range(78, 90)]),  # batches that were loaded at the start of an epoch do not count
        ([20, 50, 50], 0, 1, [*range(60, 70), *range(71, 90)]),  # nor does the first one
        ([20, 52, 52], 0, 4, [*range(60, 72), *range(76, 90)]),  # in whole updates
        ([58, 50], 4, 1, [*range(66, 90)]),  # the epoch began just before the window
        ([10] * 10, 4, 1, [*range(60, 90)]),  # of short epochs all
        ([7] * 15, 4, 1, [*range(60, 90)]),  # what workers have ready is that training as it is
        ([1] * 100, 0, 1, [*range(60, 90)]),
    ],
)
def test_steps_that_count(epochs: Sequence[int], workers: int, batches_per_update: int, expected: Sequence[int]) -> None:
    stage = Stage(kind="window", first=58, batches=32, role=BASELINE, is_timed=True, unmeasured=2, workers=workers, prefetched=2 * workers)
    assert counted_steps(rows_of(epochs, batches_per_update), stage).tolist() == expected
    whole = msgspec.structs.replace(stage, whole_epochs=True)
    assert counted_steps(rows_of(epochs, batches_per_update), whole).tolist() == [*range(60, 90)]


def test_first_steps_of_short_epochs_do_not_count_on_other_batches() -> None:
    stage = Stage(kind="window", first=14, batches=14, role=COMPUTE_ONLY, source="repeated", is_timed=True)
    assert counted_steps(rows_of([7] * 5, 1), stage).tolist() == [*range(15, 21), *range(22, 28)]
