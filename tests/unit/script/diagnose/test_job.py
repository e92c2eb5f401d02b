"""Which steps of a window count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ddpbench.record.roles import BASELINE
from ddpbench.script.diagnose.job import steady_steps
from ddpbench.script.diagnose.stage import Stage
from ddpbench.script.observe.rows import NUMBER, ROW_LENGTH, STRETCH, Rows


def rows_of(epochs: Sequence[int]) -> Rows:
    """Steps of epochs with that many batches."""
    rows = np.zeros((sum(epochs), ROW_LENGTH))
    rows[:, NUMBER], rows[:, STRETCH] = np.arange(len(rows)), np.repeat(np.arange(len(epochs)), epochs)
    return rows


@pytest.mark.parametrize(
    ("epochs", "prefetched", "expected"),
    [
        ([200], 8, [*range(60, 90)]),
        ([20, 50, 50], 8, [*range(60, 70), *range(78, 90)]),  # batches that were loaded in the pause do not count
        ([20, 50, 50], 0, [*range(60, 70), *range(71, 90)]),  # nor does the first one
        ([58, 50], 8, [*range(66, 90)]),  # the pause was just before the window
        ([10] * 10, 8, [*range(65, 70), *range(75, 80), *range(85, 90)]),  # every second step of epochs that are too short
    ],
)
def test_steps_that_count(epochs: Sequence[int], prefetched: int, expected: Sequence[int]) -> None:
    stage = Stage(kind="window", first=58, batches=32, role=BASELINE, is_timed=True, unmeasured=2)
    assert steady_steps(rows_of(epochs), stage, prefetched).tolist() == expected


def test_steps_of_a_sampled_training_keep_their_distance_from_the_pause() -> None:
    """Of a long training not all steps are kept."""
    rows = rows_of([30, 100])
    stage = Stage(kind="window", first=60, batches=40, role=BASELINE, is_timed=True)
    kept = np.delete(rows, slice(31, 59), axis=0)
    assert steady_steps(kept, stage, prefetched=8).tolist() == [*range(60, 100)]
