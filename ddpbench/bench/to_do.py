"""Which rounds of a job are still to be measured."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.earlier import ResumeState
from ddpbench.bench.scheduler import abba_schedule
from ddpbench.record.resolved import ResolvedConfig


class RoundQueue:
    """``arms`` are those of the rounds to come, in their order, once for each; ``total`` counts also what an earlier job measured."""

    def __init__(self, configs: Sequence[ResolvedConfig], resume_states: Sequence[ResumeState]) -> None:
        rounds = [config.rounds for config in configs]
        self.num_total = sum(rounds)
        self.pending_arms = [index for index, turn in abba_schedule(rounds) if resume_states[index].is_pending(turn)]

    @property
    def num_finished(self) -> int:
        """Rounds that are measured, or will not be."""
        return self.num_total - len(self.pending_arms)

    def round_ended(self, arm: int, is_finished: bool) -> None:
        """One round less of ``arm``, or none any more where it is ``is_finished``."""
        self.pending_arms.remove(arm)
        if is_finished:
            self.pending_arms = [other for other in self.pending_arms if other != arm]
