"""Round lengths of a scaling job, also with a slow loader."""

from __future__ import annotations

import time
from itertools import chain, repeat

import pytest
from delayed_loader import DelayedLoader
from training import world_of_one

from ddpbench.bench.arm import ArmOptions
from ddpbench.bench.resolve import resolve_config
from ddpbench.bench.round_plan import MIN_STEP_S, TARGET_ROUND_S, RoundPlan
from ddpbench.bench.scaling.job_spec import SCALE_ACTIVATION_S, SCALE_MIN_ROUND_S, WITH_DATA_SLOWDOWN, scale_round_plan
from ddpbench.bench.scaling.subset_arm import IdleBarrier, SubsetArm
from ddpbench.data.loaders.synthetic import SyntheticLoader, open_synthetic
from ddpbench.data.shard import Shard
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.roles import ALLREDUCE_ONLY, INDEPENDENT, NO_SYNC, SINGLE_NO_DDP, WITH_DATA, Role, ddp_role

ROLES = [ddp_role(1), ddp_role(2), ddp_role(4), SINGLE_NO_DDP, INDEPENDENT, NO_SYNC, ALLREDUCE_ONLY, WITH_DATA]


@pytest.mark.parametrize("available_s", [110.0, 130.0, 200.0])
@pytest.mark.parametrize("roles", [ROLES, ROLES[:-1]])
def test_all_rounds_of_all_arms_fit_the_available_time(roles: list[Role], available_s: float) -> None:
    laid_out = {role: scale_round_plan(role, roles, 5, available_s) for role in roles}
    assert SCALE_MIN_ROUND_S < laid_out[SINGLE_NO_DDP].round_s <= TARGET_ROUND_S
    assert sum(5 * each.first_round_s for each in laid_out.values()) <= available_s * 1.0001


def test_round_length_is_bounded_for_short_and_long_jobs() -> None:
    assert scale_round_plan(SINGLE_NO_DDP, ROLES, 5, 20.0).round_s == SCALE_MIN_ROUND_S
    assert scale_round_plan(SINGLE_NO_DDP, ROLES, 5, 2000.0).round_s == TARGET_ROUND_S


def test_with_data_round_is_limited() -> None:
    with_data = scale_round_plan(WITH_DATA, ROLES, 5, 130.0)
    assert with_data.first_round_s == WITH_DATA_SLOWDOWN * (SCALE_ACTIVATION_S + with_data.round_s)
    assert 0.15 * with_data.steps_per_round(0.15, 8) <= WITH_DATA_SLOWDOWN * with_data.round_s
    assert with_data.steps_per_round(2.0, 8) == 1


class SoonSlow(DelayedLoader):
    """Two immediate batches, as after prefetching, then slow ones."""

    max_prefetched = 2

    def __init__(self, resident: SyntheticLoader) -> None:
        waits = chain(repeat(0.0, 2), repeat(0.05))
        super().__init__(resident, lambda: time.sleep(next(waits)))


def test_loader_slower_than_its_first_batches_gets_shorter_rounds() -> None:
    world, pulse = world_of_one(), ProgressMarker(60.0)
    short = RoundPlan(0.1, warmup_s=MIN_STEP_S, min_step_s=0.02, max_round_s=0.1)
    config = resolve_config(Config(workload="mnist-cnn", batch_size=2, device="cpu", rounds=2), False, 1)

    def opener(config: ResolvedConfig, shard: Shard) -> SoonSlow:
        return SoonSlow(open_synthetic(config, shard))

    arm = SubsetArm(
        config,
        world,
        pulse,
        ArmOptions(2, loader_factory=opener, round_plan=short),
        barrier=IdleBarrier(world, pulse),
        on_bucket_bytes=lambda sizes: None,
    )
    arm.activate()
    first, second = arm.run_round(0), arm.run_round(1)
    arm.park()
    assert first is not None
    assert second is not None
    assert first.traces[0].steps > second.traces[0].steps
