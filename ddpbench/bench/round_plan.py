"""How long an arm warms up, and how many steps one of its rounds has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import ceil, inf

from ddpbench.analysis.evidence import MIN_BATCHES_PER_PRODUCER, MIN_STEPS
from ddpbench.record.config import ResolvedConfig
from ddpbench.training.warmup import WARMUP_LIMIT_S

MIN_STEPS_PER_ROUND = 4
MIN_STEP_S = 1e-6

MAX_FRACTION_OF_LONGEST_ROUND = 1 / 3
"""A round has ``BATCHES_PER_MAKER`` only if they take no more than this share of the longest round."""


def round_to_multiple(steps: int, producers: int) -> int:
    """The multiple of ``producers`` that is nearest to ``steps``; ``steps`` itself where there are fewer of them than makers.

    Batches come in bursts, one of each maker, and a round with a part of a burst is longer or shorter by chance.
    """
    return round(steps / producers) * producers if 0 < producers <= steps else steps


@dataclass(frozen=True)
class RoundPlan:
    """How an arm takes its turns. Arms with briefs run the same training, each under a condition of its own.

    What fits into memory for one then fits for all, so no step is tried first, unless an arm is ``on_trial``.
    """

    round_s: float
    warmup_s: float
    min_step_s: float = 0.0  # the least that a step takes, where that is known: a loader's first batches come faster than the others
    max_round_s: float = inf  # no round lasts longer, unless a single step does
    reserved_rounds: int = 0  # rounds that time is reserved for, before other arms have any that they do not need
    first_turn_rounds: int = 1  # rounds in the first turn
    first_round_s: float = 0.0  # what the first round takes with all that comes before it, about; inf: the arm is not worth beginning
    park_s: float = 0.0  # what leaving the device takes after the last round of a turn, where that is long
    min_steps: int = MIN_STEPS_PER_ROUND  # of a round, if they take no more than ``SHARE_OF_THE_LONGEST``
    never_shortened: bool = False  # rounds have all batches that the rule asks for, however long they take
    dry_run: bool = False  # under a setting that may not work here

    def steps_per_round(self, step_s: float, producers: int) -> int:
        """How many steps a round has, of ``step_s`` seconds each as far as was seen, with batches from so many makers.

        As many as last ``round_s``, in whole turns of the makers: ``BATCHES_PER_MAKER`` turns at least, or one where there is no time
        for them. Fewer where even that would last longer than ``longest_s``, but never less than one step.
        """
        step_s = max(step_s, self.min_step_s, MIN_STEP_S)
        usual = round_to_multiple(max(MIN_STEPS_PER_ROUND, producers, round(self.round_s / step_s)), producers)
        if self.never_shortened:
            return max(usual, MIN_BATCHES_PER_PRODUCER * producers)
        for wanted in (MIN_BATCHES_PER_PRODUCER * producers, ceil(self.min_steps / max(1, producers)) * max(1, producers)):
            if usual < wanted and wanted * step_s <= MAX_FRACTION_OF_LONGEST_ROUND * self.max_round_s:
                usual = wanted
        return max(1, int(min(self.max_round_s / step_s, usual)))


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
