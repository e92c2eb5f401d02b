"""Input of the analysis: a record, its summary and its control runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from ddpbench.analysis.collective_wait import exposed_comm_ms
from ddpbench.analysis.controls import NO_CONTROLS, ControlRuns
from ddpbench.analysis.resampling import SEED, resampled_loader, resamples, single_rounds
from ddpbench.analysis.run_length import with_split_rounds
from ddpbench.analysis.summary import BOTTLENECK_FRACTION, Summary, summarize
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.record import Record


@dataclass(frozen=True, eq=False)
class AnalysisInput:
    """A ``record`` with one round or more, its ``summary``, and its control runs. Compared by identity, so that results can be cached."""

    record: Record
    summary: Summary
    controls: ControlRuns = NO_CONTROLS

    @property
    def step_ms(self) -> float:
        assert self.summary.step_ms is not None, "an analysis input has rounds"
        return self.summary.step_ms

    @property
    def data_wait_ms(self) -> float:
        """Mean wait per step and rank for its own data and for another rank's, in ms."""
        return (self.summary.data_wait_fraction or 0.0) * self.step_ms

    @property
    def max_wait_ms(self) -> float:
        """The longest wait per step, for data or for a collective with ranks that are ready; at least the bottleneck threshold.

        The wait for ranks that are not ready is excluded: these were starved of a core, or are slow.
        """
        return max(self.data_wait_ms, exposed_comm_ms(self.record.rounds), BOTTLENECK_FRACTION * self.step_ms)

    def each_round(self) -> Iterator[AnalysisInput]:
        """One input per round, as if only that round had been measured."""
        for arms in single_rounds(self._records):
            yield self._with_records(arms, self.controls.diagnosis)

    def resampled(self) -> Iterator[AnalysisInput]:
        """One input per resample of the rounds, with the rounds of the control runs resampled alongside."""
        random = Random(SEED)
        for arms in resamples(self._records):
            yield self._with_records(arms, resampled_loader(self.controls.diagnosis, random))

    @property
    def _records(self) -> tuple[Record | None, ...]:
        controls = self.controls
        return with_split_rounds(self.record), controls.compute_only, controls.independent, controls.replay, controls.loader_in_background

    def _with_records(self, records: Sequence[Record | None], diagnosis: Diagnosis | None) -> AnalysisInput:
        record, compute_only, independent, replay, background = records
        assert record is not None, "an analysis input has rounds"
        controls = replace(
            self.controls,
            compute_only=compute_only,
            independent=independent,
            replay=replay,
            loader_in_background=background,
            diagnosis=diagnosis,
        )
        return AnalysisInput(record, summarize(record), controls)
