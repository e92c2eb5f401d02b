"""The arms of a scaling job: some ranks train, or only sum gradients, and the others wait without a sound."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ddpbench.experiments.arms import Arm
from ddpbench.machine.pulse import Pulse
from ddpbench.machine.world import World
from ddpbench.record.record import Round
from ddpbench.record.scaling import Overlap
from ddpbench.training.profile import communication_kernels_ms


class Wait:
    """Waiting for the others' turns, in one blocking call on the host: no kernel of a rank that waits runs on its GPU."""

    def __init__(self, whole: World, pulse: Pulse) -> None:
        self._whole, self._pulse = whole, pulse
        self._waited_s, self._busy_s = 0.0, 0.0

    def for_the_others(self, over: bool, takes_part: bool) -> bool:
        """Returns when every rank is here: whether the arm is over on one of them."""
        self._pulse.rest()
        begin, busy = perf_counter(), time.process_time()
        is_over = bool(self._whole.most(float(over)))
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

    def __init__(self, *given: Any, wait: Wait, note_buckets: Callable[[list[int]], None]) -> None:
        super().__init__(*given)
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

    def overlap(self) -> Overlap:
        """How long communication kernels run in a step, on the rank that waits least for others in them."""
        assert self._session is not None, "between enter and leave"
        communication_ms, bare_ms = communication_kernels_ms(self._session)
        return Overlap(communication_ms=-self._world.most(-communication_ms), bare_ms=-self._world.most(-bare_ms))
