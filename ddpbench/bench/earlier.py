"""What a second call of a command finds measured."""

from __future__ import annotations

import msgspec

from ddpbench.record.record import Record


class ResumeState(msgspec.Struct, frozen=True):
    """What an earlier job has measured of an arm: which rounds, of how many steps, on how many images; whether more tell nothing."""

    completed_rounds: frozenset[int] = frozenset()
    steps_per_round: int = 0
    images: int | None = None
    is_finished: bool = False

    @classmethod
    def from_record(cls, record: Record) -> ResumeState:
        traces = record.traces
        dead = any(trace.numerics.nonfinite_step is not None for trace in traces)
        steps = traces[0].steps if traces else 0
        too_big = record.fault is not None and record.fault.arm_index is not None and record.out_of_memory
        images = record.data.images if record.data else None
        return cls(frozenset(timed.index for timed in record.rounds), steps, images, dead or too_big)

    def is_pending(self, turn: int) -> bool:
        """Whether that round is still to be measured."""
        return not self.is_finished and turn not in self.completed_rounds


NOTHING_MEASURED = ResumeState()

MOVE_JOURNAL_HINT = "move it away, or choose another folder with -o DIR"
"""What to do with a journal that is not to be gone on with."""
