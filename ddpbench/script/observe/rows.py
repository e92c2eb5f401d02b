"""The measurements of one step as a row of numbers: what ranks keep, send to rank 0, and cut into rounds there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.record.trace import EPOCH_START_PHASE, PHASES, SCRIPT_PHASE

if TYPE_CHECKING:
    from ddpbench.script.observe.step_clock import StepTimes
    from ddpbench.script.observe.steps import StepLabel

NUMBER, STRETCH, SAMPLES, ELEMENTS, UPDATES, HOST_DATA_MS, THREAD_CPU_MS, FIRST_PHASE = range(8)
"""Columns; from the last one on, one per phase."""

PHASE_NAMES = (*PHASES, SCRIPT_PHASE, EPOCH_START_PHASE)
"""The phases of a step, in the order of their columns."""

SCRIPT_MS, EPOCH_START_MS = (FIRST_PHASE + PHASE_NAMES.index(name) for name in (SCRIPT_PHASE, EPOCH_START_PHASE))
ROW_LENGTH = FIRST_PHASE + len(PHASE_NAMES)

Rows = NDArray[np.float64]
"""Rows of one rank, of shape (steps, ROW_LENGTH), in the order of their numbers."""

SEGMENT_STEPS, FULL_SEGMENTS = 1024, 16
"""Steps are kept in segments: all of the first ones, and later ever fewer, so that a training of any length needs little memory."""


def is_kept(number: int) -> bool:
    """Whether the step with that number is kept: after 16 segments every second segment, after 32 every fourth, and so on.

    The same on all ranks.
    """
    segment = number // SEGMENT_STEPS
    return segment % (1 << (segment // FULL_SEGMENTS).bit_length()) == 0


def make_row(times: StepTimes[StepLabel]) -> list[float]:
    """The row of one step."""
    label = times.label
    measured = [times.host_data_ms, times.thread_cpu_ms, *times.phases_ms]
    row = [label.number, label.stretch, label.samples, label.elements, label.updates, *measured]
    row[EPOCH_START_MS] += label.loader_ms + label.loader_ms_in_script
    row[SCRIPT_MS] -= label.loader_ms_in_script
    return row


def add_row(sums: list[float], row: list[float]) -> list[float]:
    """The sums of all rows with ``row`` added; a new list, since another thread may read the old one. Column ``NUMBER`` counts them."""
    added = [one + other for one, other in zip(sums, row, strict=True)]
    added[NUMBER] = sums[NUMBER] + 1
    return added


def to_rows(values: Any) -> Rows:
    """The rows in a buffer, such as an ``array`` or bytes; a copy."""
    rows: Rows = np.frombuffer(values, dtype=np.float64).reshape(-1, ROW_LENGTH).copy()
    return rows
