"""Default warm-up and steps per round."""

from __future__ import annotations

from typing import Any

import pytest

from ddpbench.analysis.run_length import MIN_BATCHES_PER_PRODUCER, MIN_STEPS
from ddpbench.bench.resolve import resolve_config
from ddpbench.bench.resume import NOTHING_MEASURED, ResumeState
from ddpbench.bench.round_plan import (
    MAX_CPU_JOB_S,
    MAX_WARMUP_FRACTION,
    MIN_STEPS_CUDA,
    TARGET_ROUND_S,
    requested_steps_per_round,
    steps_per_epoch,
    steps_per_round_cpu,
    steps_per_round_gpu,
    warmup_limit_s,
)
from ddpbench.bench.scheduler import RoundQueue
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.training.warmup import WARMUP_LIMIT_S


def small(**asked: Any) -> ResolvedConfig:
    return resolve_config(Config(workload="disc-mlp-2", **asked), False, 1)


@pytest.mark.parametrize(
    ("asked", "limit_s"),
    [
        ({}, None),
        ({"time_limit": 8.0}, MAX_WARMUP_FRACTION * 8.0 / 2),
        ({"time_limit": 1e6}, WARMUP_LIMIT_S["cpu"]),
        ({"time_limit": 8.0, "fresh": True}, None),
    ],
)
def test_warmup_is_limited_to_a_fraction_of_a_short_job(asked: dict[str, object], limit_s: float | None) -> None:
    assert warmup_limit_s(small(**asked), "cpu", num_arms=2) == limit_s


def test_requested_steps_are_used() -> None:
    assert requested_steps_per_round(small(), 7) is None
    assert requested_steps_per_round(small(steps=5), 7) == 5
    assert requested_steps_per_round(small(epochs=3), 7) == 21
    assert steps_per_epoch(samples=1001, batch_size=50, world_size=2) == 11, "the last batch is full"


def test_round_is_a_multiple_of_the_producers() -> None:
    assert steps_per_round_gpu(TARGET_ROUND_S / 100, producers=0) == 100
    assert steps_per_round_gpu(TARGET_ROUND_S, producers=0) == MIN_STEPS_CUDA
    assert steps_per_round_gpu(TARGET_ROUND_S, producers=8) == MIN_BATCHES_PER_PRODUCER * 8
    assert steps_per_round_gpu(TARGET_ROUND_S / 100, producers=8) == 96


def test_cpu_rounds_fit_the_maximum_job_time() -> None:
    assert steps_per_round_cpu(TARGET_ROUND_S / 100, producers=0, rounds=5) == 100
    assert steps_per_round_cpu(1.0, producers=0, rounds=5, num_arms=10) == int(MAX_CPU_JOB_S / 50)
    assert steps_per_round_cpu(100.0, producers=0, rounds=5) == 1


def test_default_cpu_rounds_have_enough_steps_if_time_allows() -> None:
    assert 5 * steps_per_round_cpu(1.0, producers=0, rounds=5) >= MIN_STEPS
    assert 3 * steps_per_round_cpu(1.0, producers=0, rounds=3) >= MIN_STEPS
    assert 5 * steps_per_round_cpu(3.0, producers=0, rounds=5) == 20, "as many as fit into a minute"


def test_round_queue_drops_finished_rounds_and_arms() -> None:
    configs = [small(rounds=3), small(rounds=2)]
    to_do = RoundQueue(configs, [ResumeState(completed_rounds=frozenset([0])), NOTHING_MEASURED])
    assert (to_do.pending_arms, to_do.num_finished, to_do.num_total) == ([1, 1, 0, 0], 1, 5)
    to_do.round_ended(1, is_finished=False)
    assert (to_do.pending_arms, to_do.num_finished) == ([1, 0, 0], 2)
    to_do.round_ended(0, is_finished=True)
    assert (to_do.pending_arms, to_do.num_finished) == ([1], 4)
