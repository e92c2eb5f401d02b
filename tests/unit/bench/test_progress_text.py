"""The progress text of a round."""

from __future__ import annotations

from pathlib import Path

import pytest
import scaling_jobs
from training import world_of_one

from ddpbench.bench.arm import Arm
from ddpbench.bench.journal import Journal
from ddpbench.bench.progress_text import log_round
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.roles import ALLREDUCE_ONLY, Role, ddp_role


@pytest.mark.parametrize(("role", "text"), [(ddp_role(4), "23,590 images/s"), (ALLREDUCE_ONLY, "10.0 ms per step")])
def test_round_without_training_has_a_time_instead_of_a_throughput(role: Role, text: str, tmp_path: Path) -> None:
    job = scaling_jobs.job()
    index = next(at for at, record in enumerate(job.records) if record.role == role)
    record = job.records[index]
    arm = Arm(record.config, world_of_one(), ProgressMarker(60.0))
    assert log_round(Journal(job, tmp_path / "record.json"), index, arm, record.rounds[0]) == text
