"""Which rounds of a job are still to be measured."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.earlier import Earlier
from ddpbench.bench.scheduler import schedule
from ddpbench.record.resolved import Settled


class ToDo:
    """``arms`` are those of the rounds to come, in their order, once for each; ``total`` counts also what an earlier job measured."""

    def __init__(self, configs: Sequence[Settled], earlier: Sequence[Earlier]) -> None:
        rounds = [config.rounds for config in configs]
        self.total = sum(rounds)
        self.arms = [index for index, turn in schedule(rounds) if earlier[index].lacks(turn)]

    @property
    def done(self) -> int:
        """Rounds that are measured, or will not be."""
        return self.total - len(self.arms)

    def round_ended(self, arm: int, over: bool) -> None:
        """One round less of ``arm``, or none any more where it is ``over``."""
        self.arms.remove(arm)
        if over:
            self.arms = [other for other in self.arms if other != arm]
