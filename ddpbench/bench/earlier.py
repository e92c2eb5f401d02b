"""What a second call of a command finds measured."""

from __future__ import annotations

import msgspec

from ddpbench.record.record import Record


class Earlier(msgspec.Struct, frozen=True):
    """What an earlier job has measured of an arm: which rounds, of how many steps, on how many images; whether more tell nothing."""

    rounds: frozenset[int] = frozenset()
    steps: int = 0
    images: int | None = None
    over: bool = False

    @classmethod
    def of(cls, record: Record) -> Earlier:
        traces = record.traces
        dead = any(trace.numerics.nonfinite_step is not None for trace in traces)
        steps = traces[0].steps if traces else 0
        too_big = record.fault is not None and record.fault.arm is not None and record.out_of_memory
        images = record.data.images if record.data else None
        return cls(frozenset(timed.index for timed in record.rounds), steps, images, dead or too_big)

    def lacks(self, turn: int) -> bool:
        """Whether that round is still to be measured."""
        return not self.over and turn not in self.rounds


NOTHING = Earlier()

ELSEWHERE = "move it away, or choose another folder with -o DIR"
"""What to do with a journal that is not to be gone on with."""
