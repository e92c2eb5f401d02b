"""A run to be judged: its record, its summary, and the control runs around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from ddpbench.analysis.collective_wait import exchange_ms
from ddpbench.analysis.controls import NONE, Experiments
from ddpbench.analysis.evidence import BINDING, pieces
from ddpbench.analysis.resampling import SEED, resampled_loader, resamples, single_rounds
from ddpbench.analysis.summary import Summary, summarise
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.record import Record


@dataclass(frozen=True, eq=False)
class Case:
    """``summary`` is that of ``record``, which holds a round or more. Cases compare by identity, so that results can be cached."""

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

    def each_round(self) -> Iterator[Case]:
        """One case per round, as if nothing else had been measured."""
        for arms in single_rounds(self._arms):
            yield self._of(arms, self.around.diagnosis)

    def resampled(self) -> Iterator[Case]:
        """One case per resample of the rounds, with the rounds of the control runs resampled alongside."""
        random = Random(SEED)
        for arms in resamples(self._arms):
            yield self._of(arms, resampled_loader(self.around.diagnosis, random))

    @property
    def _arms(self) -> tuple[Record | None, ...]:
        around = self.around
        return pieces(self.record), around.device, around.no_sync, around.replay, around.beside

    def _of(self, arms: Sequence[Record | None], diagnosis: Diagnosis | None) -> Case:
        record, device, no_sync, replay, beside = arms
        assert record is not None, "a case has rounds"
        around = replace(self.around, device=device, no_sync=no_sync, replay=replay, beside=beside, diagnosis=diagnosis)
        return Case(record, summarise(record), around)
