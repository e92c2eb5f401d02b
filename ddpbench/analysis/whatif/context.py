"""What is asked about: a run, what was measured of it, and what other records lend."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.whatif.external import Lent


@dataclass(frozen=True)
class Patient:
    """A run that is changed in thought."""

    run: Rerun
    case: Case
    lent: Lent

    @property
    def on_gpu(self) -> bool:
        return self.case.record.environment.device_type == "cuda"
