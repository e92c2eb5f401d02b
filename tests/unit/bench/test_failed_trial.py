"""Dry run of an arm: a failure drops only that arm."""

from __future__ import annotations

import pytest
import torch
from training import InMemory, config, world_of_one

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.bench.scheduler import interleave
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.record import DatasetInfo, Round


class Counted(InMemory):
    """An in-memory loader that counts open instances."""

    data = DatasetInfo(loader="counted")
    open = 0

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ("raises", r"^ValueError: the model has had enough, on rank 0 \(here\)$"),
        ("exhausts", r"^out of memory: peak .*, on rank 0 \(here\)$"),
    ],
)
def test_trial_arm_whose_dry_run_fails_is_dropped_with_the_reason(workload: str, why: str) -> None:
    world, pulse, brief = world_of_one(), ProgressMarker(60.0), RoundPlan(0.01, warmup_s=0.01, dry_run=True)
    arms = [
        Arm(
            config(workload=f"misbehaving:{each}", rounds=1),
            world,
            pulse,
            ArmOptions(2, loader_factory=lambda *_: Counted(), round_plan=brief),
        )
        for each in (workload, "fine")
    ]
    (first, failed), (second, measured) = interleave(arms, lambda arm: True)
    assert (first, second) == (0, 1)
    assert isinstance(failed, ConfigFailed)
    with pytest.raises(ConfigFailed, match=why):
        raise failed
    assert isinstance(measured, Round)
    arms[1].park()
    assert Counted.open == 0
