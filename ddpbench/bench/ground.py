"""What everything that is measured on one rank stands on."""

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
    """One rank of a job. ``journal`` is rank 0's, who alone has one."""

    configs: Sequence[ResolvedConfig]  # of all arms
    world: World
    marker: ProgressMarker
    journal: Journal | None
    progress: Progress
    start: float  # by perf_counter, when the command did; later by what it took to make a data set

    def enter_phase(self, phase: str, text: str) -> None:
        """Something begins that is no round: ``phase`` to the watchdog, ``text`` to who listens."""
        self.marker.enter(phase)
        self.progress.stage(text)
