"""Arms on a subset of ranks: the first ranks train while the others idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter

from ddpbench.analysis.scaling.allreduce import measure_overlap
from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import Round
from ddpbench.record.scaling import Overlap
from ddpbench.record.trace import Trace
from ddpbench.training.profiler import PROFILED_STEPS, profile_all_reduces
from ddpbench.training.session import Session


class IdleBarrier:
    """Waits for other ranks in one blocking call on the host, so that a waiting rank runs no kernel on its GPU."""

    def __init__(self, world: World, marker: ProgressMarker) -> None:
        self._world, self._marker = world, marker
        self._waited_s, self._busy_s = 0.0, 0.0

    def wait_for_all(self, is_finished: bool, participates: bool) -> bool:
        """Wait until every rank is here; returns whether the arm is finished on any of them."""
        self._marker.pause()
        wait_start, cpu_start = perf_counter(), time.process_time()
        is_any_finished = self._world.any_rank(is_finished)
        if not participates:
            self._waited_s += perf_counter() - wait_start
            self._busy_s += time.process_time() - cpu_start
        self._marker.resync(int(self._world.all_max(float(self._marker.marks_passed))))
        return is_any_finished

    def busy_wait_cores(self) -> float | None:
        """Cores that a waiting rank kept busy, maximum over ranks; None if no rank ever waited."""
        cores = self._world.all_max(self._busy_s / self._waited_s if self._waited_s else -1.0)
        return None if cores < 0 else cores


class SubsetArm(Arm):
    """An arm of the first ranks of a launch. Every rank of the launch calls its rounds; ranks outside it hold no training."""

    def __init__(
        self,
        config: ResolvedConfig,
        world: World,
        marker: ProgressMarker,
        options: ArmOptions,
        *,
        barrier: IdleBarrier,
        on_bucket_bytes: Callable[[list[int]], None],
    ) -> None:
        super().__init__(config, world, marker, options)
        self._barrier, self._on_bucket_bytes = barrier, on_bucket_bytes

    def activate(self) -> None:
        if self._world.participates:
            super().activate()

    def run_round(self, index: int) -> Round | None:
        measured = super().run_round(index) if self._world.participates else None
        if self._session is not None:
            self._on_bucket_bytes(self._session.bucket_bytes())
        self.is_finished = self._barrier.wait_for_all(self.is_finished, self._world.participates)
        return measured

    def _continue_training(self, session: Session) -> Trace:
        """Set the length of the next round from the pace of this one: a loader's first batches come faster than later ones."""
        trace = super()._continue_training(session)
        if self._max_prefetched:
            self._steps_per_round = self._choose_steps_per_round(self._world.all_max(trace.wall_s / trace.steps))
        return trace

    def profile_overlap(self) -> Overlap | None:
        """All-reduce time in a step from the profiler, over all ranks; None on every rank but 0, and if the profiler saw none."""
        assert self._session is not None, "activate() comes first"
        return measure_overlap(self._world.gather(profile_all_reduces(self._session)), PROFILED_STEPS)
