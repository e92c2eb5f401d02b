"""How long an arm warms up, and how many steps one of its rounds has."""

from __future__ import annotations

import math

from ddpbench.analysis.evidence import BATCHES_PER_MAKER, LEAST_STEPS
from ddpbench.bench.round_plan import whole_turns
from ddpbench.record.resolved import Settled
from ddpbench.training.warmup import WARMUP_LIMIT_S

ROUND_S = 3.0
LEAST_STEPS_CUDA = 10
CPU_JOB_S = 60.0
"""Without ``--steps``, all rounds of a job on CPU ranks together last at most about this long."""

WARM_UP_SHARE = 0.25
"""Of a time limit, what all arms together may take to warm up."""


def warm_up_limit_s(config: Settled, device_type: str, arms: int) -> float | None:
    """How long one of so many arms may warm up where the time of the job is short; None where it is as long as it usually is.

    A round that is a training of its own warms up by itself.
    """
    if config.time_limit is None or config.fresh:
        return None
    return min(WARMUP_LIMIT_S[device_type], WARM_UP_SHARE * config.time_limit / arms)


def steps_an_epoch(images: int, batch_size: int, ranks: int) -> int:
    """Steps in which all ranks together see as many samples as there are, the last one full."""
    return math.ceil(images / (batch_size * ranks))


def steps_asked_for(config: Settled, an_epoch: int) -> int | None:
    """The steps of a round where the user said how many, in steps or in epochs of so many; else None."""
    if config.steps:
        return config.steps
    return config.epochs * an_epoch if config.epochs else None


def steps_on_gpu(step_s: float, makers: int) -> int:
    """The steps of a round of about ``ROUND_S``, of ``step_s`` seconds each, whose batches come from so many makers."""
    return max(LEAST_STEPS_CUDA, _usual_steps(step_s, makers))


def steps_on_cpu(step_s: float, makers: int, rounds: int, arms: int = 1) -> int:
    """The same for one of ``arms`` with so many ``rounds`` each, and at least the steps that a figure needs.

    Fewer, but at least one, if all rounds of the job would last longer than ``CPU_JOB_S``.
    """
    affordable = int(CPU_JOB_S / (arms * rounds) / step_s)
    return max(1, min(affordable, max(_usual_steps(step_s, makers), math.ceil(LEAST_STEPS / rounds))))


def _usual_steps(step_s: float, makers: int) -> int:
    return whole_turns(max(BATCHES_PER_MAKER * makers, round(ROUND_S / step_s)), makers)
