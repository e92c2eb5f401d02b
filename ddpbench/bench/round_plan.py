"""How an arm takes its turns where many share little time: how long its rounds are, and how many of them it needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from ddpbench.analysis.evidence import MIN_BATCHES_PER_PRODUCER

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
