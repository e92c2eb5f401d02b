"""How long an arm warms up, and how many steps one of its rounds has."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from ddpbench.analysis.run_length import MIN_BATCHES_PER_PRODUCER, MIN_STEPS
from ddpbench.record.config import ResolvedConfig
from ddpbench.training.warmup import WARMUP_LIMIT_S

MIN_STEPS_PER_ROUND = 4
MIN_STEP_S = 1e-6

MAX_FRACTION_OF_LONGEST_ROUND = 1 / 3
"""``MIN_BATCHES_PER_PRODUCER`` and ``min_steps`` apply only if a round then takes at most this fraction of the longest round."""


def round_to_multiple(steps: int, producers: int) -> int:
    """The multiple of ``producers`` nearest to ``steps``; ``steps`` itself if it is smaller than ``producers``.

    Batches arrive in bursts of one per producer, and the length of a round that ends within a burst varies by chance.
    """
    return round(steps / producers) * producers if 0 < producers <= steps else steps


@dataclass(frozen=True)
class RoundPlan:
    """How an arm takes its turns. All arms with a RoundPlan run the same training, each under a different condition.

    If one of them fits into memory, all do, so no dry run is made unless ``dry_run`` is set.
    """

    round_s: float
    warmup_s: float
    min_step_s: float = 0.0  # lower bound of a step, if known: a loader's first batches come faster than the others
    max_round_s: float = inf  # no round lasts longer, unless a single step does
    reserved_rounds: int = 0  # rounds for which time is reserved before other arms get rounds that they do not need
    first_turn_rounds: int = 1  # rounds in the first turn
    first_round_s: float = 0.0  # estimate for the first round including activation; inf: the arm is not worth starting
    park_s: float = 0.0  # seconds to park the arm after the last round of a turn, if that is long
    min_steps: int = MIN_STEPS_PER_ROUND  # of a round, within ``MAX_FRACTION_OF_LONGEST_ROUND``
    never_shortened: bool = False  # rounds have all batches that MIN_BATCHES_PER_PRODUCER requires, however long they take
    dry_run: bool = False  # try a step first: this configuration may not work here

    def steps_per_round(self, step_s: float, producers: int) -> int:
        """Steps per round, given the measured ``step_s`` seconds per step and the number of batch ``producers``.

        As many as last ``round_s``, in whole bursts of the producers: at least ``MIN_BATCHES_PER_PRODUCER`` bursts, or one if there is
        no time for them. Fewer if even that would exceed ``max_round_s``, but at least one step.
        """
        step_s = max(step_s, self.min_step_s, MIN_STEP_S)
        target_steps = round_to_multiple(max(MIN_STEPS_PER_ROUND, producers, round(self.round_s / step_s)), producers)
        min_bursts = MIN_BATCHES_PER_PRODUCER * producers
        if self.never_shortened:
            return max(target_steps, min_bursts)
        burst = max(1, producers)
        whole_bursts = ceil(self.min_steps / burst) * burst
        for steps in (min_bursts, whole_bursts):
            if target_steps < steps and steps * step_s <= MAX_FRACTION_OF_LONGEST_ROUND * self.max_round_s:
                target_steps = steps
        return max(1, int(min(self.max_round_s / step_s, target_steps)))


TARGET_ROUND_S = 3.0
MIN_STEPS_CUDA = 10
MAX_CPU_JOB_S = 60.0
"""Without ``--steps``, all rounds of a job on CPU ranks together last at most about this long."""

MAX_WARMUP_FRACTION = 0.25
"""Maximum fraction of a time limit for the warm-up of all arms together."""


def warmup_limit_s(config: ResolvedConfig, device_type: str, num_arms: int) -> float | None:
    """Limit on the warm-up of one of ``num_arms`` arms under ``--time-limit``; None for the usual limit.

    Rounds that train from scratch include their warm-up.
    """
    if config.time_limit is None or config.fresh:
        return None
    return min(WARMUP_LIMIT_S[device_type], MAX_WARMUP_FRACTION * config.time_limit / num_arms)


def steps_per_epoch(samples: int, batch_size: int, world_size: int) -> int:
    """Steps in which all ranks together see every sample once; the last batch is a full one."""
    return ceil(samples / (batch_size * world_size))


def requested_steps_per_round(config: ResolvedConfig, epoch_steps: int) -> int | None:
    """Steps per round if the user gave ``--steps`` or ``--epochs``, an epoch having ``epoch_steps`` steps; else None."""
    if config.steps:
        return config.steps
    return config.epochs * epoch_steps if config.epochs else None


def steps_per_round_gpu(step_s: float, producers: int) -> int:
    """Steps in a GPU round of about ``TARGET_ROUND_S``, at ``step_s`` seconds each, with batches from ``producers`` producers."""
    return max(MIN_STEPS_CUDA, _default_steps_per_round(step_s, producers))


def steps_per_round_cpu(step_s: float, producers: int, rounds: int, num_arms: int = 1) -> int:
    """Steps in a CPU round of one of ``num_arms`` arms with ``rounds`` rounds each, at least as many as a figure needs.

    Fewer, but at least one, if all rounds of the job would last longer than ``MAX_CPU_JOB_S``.
    """
    affordable = int(MAX_CPU_JOB_S / (num_arms * rounds) / step_s)
    return max(1, min(affordable, max(_default_steps_per_round(step_s, producers), ceil(MIN_STEPS / rounds))))


def _default_steps_per_round(step_s: float, producers: int) -> int:
    return round_to_multiple(max(MIN_BATCHES_PER_PRODUCER * producers, round(TARGET_ROUND_S / step_s)), producers)
