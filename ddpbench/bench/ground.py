"""Per-rank job context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.bench.journal import Journal
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.progress import Progress


@dataclass(frozen=True)
class JobContext:
    """What all measurements on one rank share; only rank 0 has a ``journal``."""

    configs: Sequence[ResolvedConfig]  # of all arms
    world: World
    marker: ProgressMarker
    journal: Journal | None
    progress: Progress
    start: float  # start of the command on the perf_counter clock, plus the time spent generating a dataset

    def enter_phase(self, phase: str, text: str) -> None:
        """Begin work outside the rounds: ``phase`` for the watchdog, ``text`` for the progress display."""
        self.marker.enter(phase)
        self.progress.stage(text)
