"""The arms of a scaling job: some ranks train, or only sum gradients, and the others wait without a sound."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter

from ddpbench.analysis.scaling.overlap import overlap_of
from ddpbench.bench.arm import Arm
from ddpbench.bench.terms import Terms
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import Pulse
from ddpbench.record.record import Round
from ddpbench.record.resolved import Settled
from ddpbench.record.scaling import Overlap
from ddpbench.record.trace import Trace
from ddpbench.training.profiler import STEPS, all_reduces
from ddpbench.training.session import Session


class Wait:
    """Waiting for the others' turns, in one blocking call on the host: no kernel of a rank that waits runs on its GPU."""

    def __init__(self, whole: World, pulse: Pulse) -> None:
        self._whole, self._pulse = whole, pulse
        self._waited_s, self._busy_s = 0.0, 0.0

    def for_the_others(self, over: bool, takes_part: bool) -> bool:
        """Returns when every rank is here: whether the arm is over on one of them."""
        self._pulse.rest()
        begin, busy = perf_counter(), time.process_time()
        is_over = self._whole.any(over)
        if not takes_part:
            self._waited_s += perf_counter() - begin
            self._busy_s += time.process_time() - busy
        self._pulse.rejoin(int(self._whole.most(float(self._pulse.count))))
        return is_over

    def cores(self) -> float | None:
        """Cores that a waiting rank kept busy, the most of any rank; None where none ever waited."""
        most = self._whole.most(self._busy_s / self._waited_s if self._waited_s else -1.0)
        return None if most < 0 else most


class Rung(Arm):
    """An arm of the first ranks of a launch. Every rank of the launch takes its turns; one that has no part in them holds nothing."""

    def __init__(
        self, config: Settled, world: World, pulse: Pulse, terms: Terms, *, wait: Wait, note_buckets: Callable[[list[int]], None]
    ) -> None:
        super().__init__(config, world, pulse, terms)
        self._wait, self._note_buckets = wait, note_buckets

    def enter(self) -> None:
        if self._world.takes_part:
            super().enter()

    def round(self, index: int) -> Round | None:
        measured = super().round(index) if self._world.takes_part else None
        if self._session is not None:
            self._note_buckets(self._session.bucket_bytes())
        self.over = self._wait.for_the_others(self.over, self._world.takes_part)
        return measured

    def _next_round(self, session: Session) -> Trace:
        """A loader's first batches come faster than those that follow: a round of its is as long as the pace of the last one says."""
        trace = super()._next_round(session)
        if self._in_flight:
            self._steps = self._steps_a_round(self._world.most(trace.wall_s / trace.steps))
        return trace

    def overlap(self) -> Overlap | None:
        """What the profiler sees of the all-reduce in a step, over all ranks; None on every rank but 0, and where it sees nothing."""
        assert self._session is not None, "between enter and leave"
        return overlap_of(self._world.gather(all_reduces(self._session)), STEPS)
