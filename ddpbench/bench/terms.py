"""On what terms an arm takes its turns among the others of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddpbench.bench.earlier import NOTHING_MEASURED, ResumeState
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.data.loader import LoaderFactory
from ddpbench.data.loaders.open import open_loader
from ddpbench.machine.device import Device


@dataclass(frozen=True)
class ArmOptions:
    """On what terms an arm takes its turns.

    ``earlier`` is what an earlier job has measured of the same arm. ``beside`` makes what an earlier training has left on the
    device when one begins that is fresh, and what its first loss takes the place of. ``report`` takes the epoch that a long round is in,
    on rank 0.
    """

    num_arms: int = 1  # of the job
    index: int | None = None  # its place among the records of the job
    resume_state: ResumeState = NOTHING_MEASURED
    loader_factory: LoaderFactory = open_loader
    round_plan: RoundPlan | None = None
    leftover_factory: Callable[[Device], object] | None = None
    report: Callable[[str], None] | None = None
    trace_file: Path | None = None


SINGLE_ARM = ArmOptions()
