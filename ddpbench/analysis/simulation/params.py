"""What is simulated: ranks, their workers, how long each part takes, and the cores that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SimParams:
    """One training with its loader. Times are seconds, of a process that has the core it needs; each is drawn anew from those measured.

    ``batches`` holds a list a rank: how long a worker takes for a batch. ``steps`` are those of all ranks on batches that are there
    already, so the meeting of the ranks is in them.
    """

    ranks: int
    workers: int  # a rank; 0 where the trainer makes its batches itself, between steps
    prefetch: int  # batches a worker keeps ready
    batch_times_s: Sequence[Sequence[float]]
    step_times_s: Sequence[float]
    handoff_s: float = 0.0  # from a worker's end of a batch to the trainer's having it
    background_handoff: bool = False  # a thread hands over while the trainer trains, as the one that pins memory does
    run_ahead: int = 0  # steps that the host may issue before the device has done them
    cores: float | None = None  # of one node; None where nobody lacks any
    ranks_per_node: int = 1
    step_cpu_s: float = 0.0  # seconds of a core that a rank needs for a step: its workers' for a batch, and its trainer's
    storage_s: float = 0.0  # seconds that a node's storage takes for the files of a step, those of all ranks there
