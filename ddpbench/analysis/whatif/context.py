"""What is asked about: a run, what was measured of it, and what other records lend."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.whatif.external import ExternalMeasurements


@dataclass(frozen=True)
class WhatIfContext:
    """A run that is changed in thought."""

    builder: CommandBuilder
    inputs: AnalysisInput
    external: ExternalMeasurements

    @property
    def on_gpu(self) -> bool:
        return self.inputs.record.environment.device_type == "cuda"
