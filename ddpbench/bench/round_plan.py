"""How an arm takes its turns where many share little time: how long its rounds are, and how many of them it needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from ddpbench.analysis.evidence import BATCHES_PER_MAKER

LEAST_STEPS = 4
INSTANT_S = 1e-6

SHARE_OF_THE_LONGEST = 1 / 3
"""A round has ``BATCHES_PER_MAKER`` only if they take no more than this share of the longest round."""


def whole_turns(steps: int, makers: int) -> int:
    """The multiple of ``makers`` that is nearest to ``steps``; ``steps`` itself where there are fewer of them than makers.

    Batches come in bursts, one of each maker, and a round with a part of a burst is longer or shorter by chance.
    """
    return round(steps / makers) * makers if 0 < makers <= steps else steps


@dataclass(frozen=True)
class Brief:
    """How an arm takes its turns. Arms with briefs run the same training, each under a condition of its own.

    What fits into memory for one then fits for all, so no step is tried first, unless an arm is ``on_trial``.
    """

    round_s: float
    warm_up_s: float
    step_s: float = 0.0  # the least that a step takes, where that is known: a loader's first batches come faster than the others
    longest_s: float = inf  # no round lasts longer, unless a single step does
    needed: int = 0  # rounds that time is reserved for, before other arms have any that they do not need
    at_once: int = 1  # rounds in the first turn
    first_round_s: float = 0.0  # what the first round takes with all that comes before it, about; inf: the arm is not worth beginning
    leaving_s: float = 0.0  # what leaving the device takes after the last round of a turn, where that is long
    least_steps: int = LEAST_STEPS  # of a round, if they take no more than ``SHARE_OF_THE_LONGEST``
    complete: bool = False  # rounds have all batches that the rule asks for, however long they take
    on_trial: bool = False  # under a setting that may not work here

    def steps(self, step_s: float, makers: int) -> int:
        """How many steps a round has, of ``step_s`` seconds each as far as was seen, with batches from so many makers.

        As many as last ``round_s``, in whole turns of the makers: ``BATCHES_PER_MAKER`` turns at least, or one where there is no time
        for them. Fewer where even that would last longer than ``longest_s``, but never less than one step.
        """
        step_s = max(step_s, self.step_s, INSTANT_S)
        usual = whole_turns(max(LEAST_STEPS, makers, round(self.round_s / step_s)), makers)
        if self.complete:
            return max(usual, BATCHES_PER_MAKER * makers)
        for wanted in (BATCHES_PER_MAKER * makers, ceil(self.least_steps / max(1, makers)) * max(1, makers)):
            if usual < wanted and wanted * step_s <= SHARE_OF_THE_LONGEST * self.longest_s:
                usual = wanted
        return max(1, int(min(self.longest_s / step_s, usual)))
