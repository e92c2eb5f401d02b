"""Context of a what-if query."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.whatif.external import ExternalMeasurements


@dataclass(frozen=True)
class WhatIfContext:
    """Inputs of a what-if query: the run, its measurements, and those of other records."""

    builder: CommandBuilder
    inputs: AnalysisInput
    external: ExternalMeasurements

    @property
    def on_gpu(self) -> bool:
        return self.inputs.record.environment.device_type == "cuda"

    @property
    def keeps_workers(self) -> bool:
        """Whether the workers of the run live for longer than an epoch."""
        data = self.inputs.record.data
        return data is not None and bool(self.inputs.record.workers) and not data.respawns_workers

    @property
    def can_keep_workers(self) -> bool:
        """Whether the loader of a script can, in epochs of a known length."""
        record = self.inputs.record
        return record.script is not None and bool(record.script.epoch_batches) and not record.rebuilds_loader
