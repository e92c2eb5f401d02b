"""What everything that is measured on one rank stands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.bench.journal import Journal
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import Pulse
from ddpbench.record.progress import Progress
from ddpbench.record.resolved import Settled


@dataclass(frozen=True)
class Ground:
    """One rank of a job. ``journal`` is rank 0's, who alone has one."""

    configs: Sequence[Settled]  # of all arms
    world: World
    pulse: Pulse
    journal: Journal | None
    progress: Progress
    began: float  # by perf_counter, when the command did; later by what it took to make a data set

    def begin(self, doing: str, text: str) -> None:
        """Something begins that is no round: ``doing`` to the watchdog, ``text`` to who listens."""
        self.pulse.enter(doing)
        self.progress.stage(text)
