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
