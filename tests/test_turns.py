"""The turns of a scaling job: how long they are, and that a slow loader is found out in its first round."""

from __future__ import annotations

import time
from itertools import chain, repeat

import pytest
from held_up import HeldUp
from training import world_of_one

from ddpbench.bench.lengths import ROUND_S
from ddpbench.bench.resolve import settle
from ddpbench.bench.round_plan import INSTANT_S, Brief
from ddpbench.bench.scaling.briefs import BESIDE_S, LEAST_ROUND_S, SLOW, brief_of
from ddpbench.bench.scaling.subset_arm import Rung, Wait
from ddpbench.bench.terms import Terms
from ddpbench.data.loaders.synthetic import Synthetic, open_synthetic
from ddpbench.data.shard import Shard
from ddpbench.machine.progress_marker import Pulse
from ddpbench.record.config import Config
from ddpbench.record.resolved import Settled
from ddpbench.record.scaling import ALONE, APART, COMMUNICATION, UNSYNCED, WITH_DATA, rung

LABELS = [rung(1), rung(2), rung(4), ALONE, APART, UNSYNCED, COMMUNICATION, WITH_DATA]


@pytest.mark.parametrize("available_s", [110.0, 130.0, 200.0])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:-1]])
def test_all_arms_have_all_their_rounds_in_the_time_that_there_is(labels: list[str], available_s: float) -> None:
    laid_out = {label: brief_of(label, labels, 5, available_s) for label in labels}
    assert LEAST_ROUND_S < laid_out[ALONE].round_s <= ROUND_S
    assert sum(5 * each.first_round_s for each in laid_out.values()) <= available_s * 1.0001


def test_little_time_gives_short_rounds_and_much_none_longer_than_a_run_has() -> None:
    assert brief_of(ALONE, LABELS, 5, 20.0).round_s == LEAST_ROUND_S
    assert brief_of(ALONE, LABELS, 5, 2000.0).round_s == ROUND_S


def test_a_round_with_data_takes_no_more_than_some_others() -> None:
    with_data = brief_of(WITH_DATA, LABELS, 5, 130.0)
    assert with_data.first_round_s == SLOW * (BESIDE_S + with_data.round_s)
    assert 0.15 * with_data.steps(0.15, 8) <= SLOW * with_data.round_s
    assert with_data.steps(2.0, 8) == 1


class SoonSlow(HeldUp):
    """Two batches at once, as of a loader that had time to work ahead, and every other after a while."""

    in_flight = 2

    def __init__(self, resident: Synthetic) -> None:
        waits = chain(repeat(0.0, 2), repeat(0.05))
        super().__init__(resident, lambda: time.sleep(next(waits)))


def test_a_loader_that_is_slower_than_it_began_has_shorter_rounds_from_the_second_on() -> None:
    world, pulse = world_of_one(), Pulse(60.0)
    short = Brief(0.1, warm_up_s=INSTANT_S, step_s=0.02, longest_s=0.1)
    config = settle(Config(workload="mnist-cnn", batch_size=2, device="cpu", rounds=2), False, 1)

    def opener(config: Settled, shard: Shard) -> SoonSlow:
        return SoonSlow(open_synthetic(config, shard))

    arm = Rung(config, world, pulse, Terms(2, opener=opener, brief=short), wait=Wait(world, pulse), note_buckets=lambda sizes: None)
    arm.enter()
    first, second = arm.round(0), arm.round(1)
    arm.leave()
    assert first is not None
    assert second is not None
    assert first.traces[0].steps > second.traces[0].steps
