"""Turns of an arm where many share little time: how long its rounds are, and which of them come before those of others."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

LEAST_STEPS = 4
INSTANT_S = 1e-6

BATCHES_A_MAKER = 4
"""A round spans so many batches of every maker, so that their bursts are in its mean and not in its figure."""

SHARE_OF_THE_LONGEST = 1 / 3
"""It does where that takes this fraction of the longest round."""


def whole_turns(steps: int, makers: int) -> int:
    """The whole turns of so many makers that are nearest to ``steps``: their batches come in bursts, and a part of one is chance."""
    return round(steps / makers) * makers if 0 < makers <= steps else steps


@dataclass(frozen=True)
class Brief:
    """How an arm takes its turns: the same training as the others, under a condition of its own.

    So what fits for one fits for all, and no step is tried before, unless it is ``on_trial``: under a setting that may not work here.
    ``step_s`` is what a step takes at least where that is known: a loader's first batches come faster than those that follow.

    Time is kept for ``needed`` rounds of it, before others have any that they do not need themselves, and its first turn is of
    ``at_once`` rounds. ``first_round_s`` is what the first of them takes with all before it, about; inf where it is not worth its time.
    """

    round_s: float
    warm_up_s: float
    step_s: float = 0.0
    longest_s: float = inf  # no round lasts longer, unless a step does
    needed: int = 0
    at_once: int = 1
    first_round_s: float = 0.0
    leaving_s: float = 0.0  # what its turn takes after its last round, where that is long
    on_trial: bool = False

    def steps(self, step_s: float, makers: int) -> int:
        """How many a round has, of ``step_s`` seconds each as far as was seen, whose batches come from so many makers.

        ``BATCHES_A_MAKER`` batches of every maker as other rounds have at least, or one where there is no time for that: whole turns still,
        so that each has the bursts that it must have, but of few of them. Fewer where even those last too long.
        """
        step_s = max(step_s, self.step_s, INSTANT_S)
        usual = whole_turns(max(LEAST_STEPS, makers, round(self.round_s / step_s)), makers)
        if usual < BATCHES_A_MAKER * makers and BATCHES_A_MAKER * makers * step_s <= SHARE_OF_THE_LONGEST * self.longest_s:
            usual = BATCHES_A_MAKER * makers
        return max(1, min(usual, int(min(self.longest_s / step_s, usual))))
