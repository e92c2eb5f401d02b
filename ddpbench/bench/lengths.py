"""How long an arm warms up, and how many steps one of its rounds has."""

from __future__ import annotations

import math

from ddpbench.analysis.evidence import MIN_BATCHES_PER_PRODUCER, MIN_STEPS
from ddpbench.bench.round_plan import round_to_multiple
from ddpbench.record.resolved import ResolvedConfig
from ddpbench.training.warmup import WARMUP_LIMIT_S

TARGET_ROUND_S = 3.0
MIN_STEPS_CUDA = 10
MAX_CPU_JOB_S = 60.0
"""Without ``--steps``, all rounds of a job on CPU ranks together last at most about this long."""

MAX_WARMUP_FRACTION = 0.25
"""Of a time limit, what all arms together may take to warm up."""


def warmup_limit_s(config: ResolvedConfig, device_type: str, num_arms: int) -> float | None:
    """How long one of so many arms may warm up where the time of the job is short; None where it is as long as it usually is.

    A round that is a training of its own warms up by itself.
    """
    if config.time_limit is None or config.fresh:
        return None
    return min(WARMUP_LIMIT_S[device_type], MAX_WARMUP_FRACTION * config.time_limit / num_arms)


def steps_per_epoch(images: int, batch_size: int, world_size: int) -> int:
    """Steps in which all ranks together see as many samples as there are, the last one full."""
    return math.ceil(images / (batch_size * world_size))


def requested_steps_per_round(config: ResolvedConfig, epoch_steps: int) -> int | None:
    """The steps of a round where the user said how many, in steps or in epochs of so many; else None."""
    if config.steps:
        return config.steps
    return config.epochs * epoch_steps if config.epochs else None


def steps_per_round_gpu(step_s: float, producers: int) -> int:
    """The steps of a round of about ``ROUND_S``, of ``step_s`` seconds each, whose batches come from so many makers."""
    return max(MIN_STEPS_CUDA, _default_steps_per_round(step_s, producers))


def steps_per_round_cpu(step_s: float, producers: int, rounds: int, num_arms: int = 1) -> int:
    """The same for one of ``num_arms`` with so many ``rounds`` each, and at least the steps that a figure needs.

    Fewer, but at least one, if all rounds of the job would last longer than ``CPU_JOB_S``.
    """
    affordable = int(MAX_CPU_JOB_S / (num_arms * rounds) / step_s)
    return max(1, min(affordable, max(_default_steps_per_round(step_s, producers), math.ceil(MIN_STEPS / rounds))))


def _default_steps_per_round(step_s: float, producers: int) -> int:
    return round_to_multiple(max(MIN_BATCHES_PER_PRODUCER * producers, round(TARGET_ROUND_S / step_s)), producers)
