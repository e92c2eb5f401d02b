"""A run to be judged: its record, its rounds in numbers, and what was measured around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.experiments import NONE, Experiments
from ddpbench.analysis.summary import Summary, summarise
from ddpbench.analysis.waits import exchange_ms
from ddpbench.record.record import Record


@dataclass(frozen=True)
class Case:
    """``summary`` is that of ``record``, which holds a round or more."""

    record: Record
    summary: Summary
    around: Experiments = NONE

    @property
    def step_ms(self) -> float:
        assert self.summary.step_ms is not None, "a round or more"
        return self.summary.step_ms

    @property
    def data_wait_ms(self) -> float:
        """Of a step, the mean over ranks: the wait for their own data, and for another rank's."""
        return (self.summary.data_wait_share or 0.0) * self.step_ms

    @property
    def largest_wait_ms(self) -> float:
        """Of a step: for data, or for an exchange with ranks that are ready; a wait that is a limit takes this at the least.

        The wait for ranks that are not ready is no limit of its own: they were kept from a core, or are slow.
        """
        return max(self.data_wait_ms, exchange_ms(self.record.rounds), BINDING * self.step_ms)

    def each_round(self) -> list[Case]:
        """One case a round, as if that were all that had been measured."""
        return [self._of_round(timed.index) for timed in self.record.rounds]

    def _of_round(self, index: int) -> Case:
        timed = next(timed for timed in self.record.rounds if timed.index == index)
        alone = msgspec.structs.replace(self.record, rounds=[timed], launch_gap=None)
        return replace(self, record=alone, summary=summarise(alone), around=self.around.round(index))
