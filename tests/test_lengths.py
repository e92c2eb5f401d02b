"""How long an arm warms up, and how many steps its rounds have, where nobody says."""

from __future__ import annotations

from typing import Any

import pytest

from ddpbench.analysis.evidence import BATCHES_PER_MAKER, LEAST_STEPS
from ddpbench.bench.earlier import NOTHING, Earlier
from ddpbench.bench.lengths import (
    CPU_JOB_S,
    LEAST_STEPS_CUDA,
    ROUND_S,
    WARM_UP_SHARE,
    steps_an_epoch,
    steps_asked_for,
    steps_on_cpu,
    steps_on_gpu,
    warm_up_limit_s,
)
from ddpbench.bench.resolve import settle
from ddpbench.bench.to_do import ToDo
from ddpbench.record.config import Config
from ddpbench.record.resolved import Settled
from ddpbench.training.warmup import WARMUP_LIMIT_S


def small(**asked: Any) -> Settled:
    return settle(Config(workload="disc-mlp-2", **asked), False, 1)


@pytest.mark.parametrize(
    ("asked", "limit_s"),
    [
        ({}, None),
        ({"time_limit": 8.0}, WARM_UP_SHARE * 8.0 / 2),
        ({"time_limit": 1e6}, WARMUP_LIMIT_S["cpu"]),
        ({"time_limit": 8.0, "fresh": True}, None),
    ],
)
def test_warming_up_has_its_share_of_a_short_job(asked: dict[str, object], limit_s: float | None) -> None:
    assert warm_up_limit_s(small(**asked), "cpu", arms=2) == limit_s


def test_steps_that_are_asked_for_are_had() -> None:
    assert steps_asked_for(small(), 7) is None
    assert steps_asked_for(small(steps=5), 7) == 5
    assert steps_asked_for(small(epochs=3), 7) == 21
    assert steps_an_epoch(images=1001, batch_size=50, ranks=2) == 11, "the last one is full"


def test_a_round_is_of_whole_turns_of_its_makers() -> None:
    assert steps_on_gpu(ROUND_S / 100, makers=0) == 100
    assert steps_on_gpu(ROUND_S, makers=0) == LEAST_STEPS_CUDA
    assert steps_on_gpu(ROUND_S, makers=8) == BATCHES_PER_MAKER * 8
    assert steps_on_gpu(ROUND_S / 100, makers=8) == 96


def test_all_rounds_of_a_job_on_processors_end_in_time() -> None:
    assert steps_on_cpu(ROUND_S / 100, makers=0, rounds=5) == 100
    assert steps_on_cpu(1.0, makers=0, rounds=5, arms=10) == int(CPU_JOB_S / 50)
    assert steps_on_cpu(100.0, makers=0, rounds=5) == 1


def test_default_rounds_on_processors_have_the_steps_that_a_figure_needs_if_there_is_time() -> None:
    assert 5 * steps_on_cpu(1.0, makers=0, rounds=5) >= LEAST_STEPS
    assert 3 * steps_on_cpu(1.0, makers=0, rounds=3) >= LEAST_STEPS
    assert 5 * steps_on_cpu(3.0, makers=0, rounds=5) == 20, "as many as fit a minute"


def test_a_round_that_ended_is_to_do_no_more_and_none_is_of_an_arm_that_is_over() -> None:
    configs = [small(rounds=3), small(rounds=2)]
    to_do = ToDo(configs, [Earlier(rounds=frozenset([0])), NOTHING])
    assert (to_do.arms, to_do.done, to_do.total) == ([1, 1, 0, 0], 1, 5)
    to_do.round_ended(1, over=False)
    assert (to_do.arms, to_do.done) == ([1, 0, 0], 2)
    to_do.round_ended(0, over=True)
    assert (to_do.arms, to_do.done) == ([1], 4)
