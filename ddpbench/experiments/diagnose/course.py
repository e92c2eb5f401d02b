"""The course of a diagnosis: what is measured before the trainings and after them, in the time that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt

from ddpbench.analysis.cures import DIAGNOSIS_S, PROOF_S
from ddpbench.data.replay import LEAST_BATCHES, MOST_BATCHES
from ddpbench.experiments.arms import Arm
from ddpbench.experiments.brief import Brief
from ddpbench.experiments.budget import ENDING_S, Budget
from ddpbench.experiments.diagnose.candidates import CANDIDATES
from ddpbench.experiments.diagnose.copies import COPIES
from ddpbench.experiments.diagnose.loading import ON_ALL_RANKS, ON_ONE_RANK
from ddpbench.experiments.diagnose.openers import Openers
from ddpbench.experiments.diagnose.proof import prove
from ddpbench.experiments.diagnose.scene import ENTERING_S, Experiment, LeftOut, Scene
from ddpbench.experiments.diagnose.stages import STAGES
from ddpbench.experiments.diagnose.storage import STORAGE
from ddpbench.experiments.diagnose.surroundings import SURROUNDINGS
from ddpbench.experiments.inside import look_inside
from ddpbench.experiments.job import Ground
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import BESIDE, DEVICE, REAL, REPLAY
from ddpbench.report.progress import time_left

WINDOW_S, ROUND_S, WARM_UP_S = 2.0, 1.5, 3.0
"""How long a loader is looked at alone, a round of a training lasts, and a warm-up, about, in the time that a diagnosis usually has."""

NEEDED = {REAL: 3, DEVICE: 1}
"""Rounds without which there is no verdict: time is kept for them."""

LONGEST = 1 / 4
"""The share of the time for rounds that one may take where steps are slow."""

MOST_TO_FILL = 0.1
"""The share of all time that may go into reading the batches to replay."""

BEFORE = (SURROUNDINGS, ON_ALL_RANKS)
AFTER = (COPIES, ON_ONE_RANK, STAGES, CANDIDATES, STORAGE)
"""The storage last: it drops files from the page cache."""

INSIDE_S = 5.0
MOST_AFTER = 0.3
"""The share of the time that is kept free for what comes after the trainings, at most."""

NO_TIME = "no time was left for it"


def share_of(limit_s: float) -> float:
    """How long windows and rounds are, of what they usually are: of more time half goes into longer rounds, and half into more."""
    share = limit_s / DIAGNOSIS_S
    return min(share, sqrt(share))


class Course:
    """One diagnosis on one rank. ``labels`` are those of its trainings, in the order of the arms.

    Where it is to ``verify`` what it predicts, ``limit_s`` is shared with that.
    """

    def __init__(self, limit_s: float | None, labels: Sequence[str], verify: bool = False) -> None:
        self.openers = Openers()
        whole_s = DIAGNOSIS_S + (PROOF_S if verify else 0.0)
        self._limit_s, self._labels = DIAGNOSIS_S * (limit_s or whole_s) / whole_s, labels
        self._proof_s = (limit_s or whole_s) - self._limit_s
        self._share = share_of(self._limit_s)
        self._after_s = 0.0

    def before_rounds(self, ground: Ground) -> None:
        """The machine, while nothing runs, and the loader alone, by whose pace the rounds are laid out."""
        self._budget = Budget(self._limit_s, ground.began, ground.world, ENDING_S * min(1.0, self._share))
        self._scene = Scene(ground, ground.configs[self._labels.index(REAL)], self.openers, WINDOW_S * self._share)
        for experiment in BEFORE:
            self._carry_out(experiment)
        wanted_s = sum(each.costs_s(self._scene) for each in AFTER if not each.why_not(self._scene)) + self._inside_s
        self._after_s = min(wanted_s, MOST_AFTER * self._limit_s)

    def rounds_end_s(self, config: Config, over_s: float) -> float:
        """When the rounds have to be over, for what comes after them to have its time. The first is always tried."""
        return over_s + max(0.0, self._budget.left_s() - self._after_s)

    def brief(self, label: str) -> Brief:
        """How the training of that label takes its turns. The run itself has its rounds at once where its loader starts too slowly."""
        there_s, round_s, warm_up_s = max(0.0, self._budget.left_s() - self._after_s), ROUND_S * self._share, WARM_UP_S * self._share
        brief = Brief(
            round_s,
            warm_up_s,
            longest_s=LONGEST * there_s,
            needed=NEEDED.get(label, 0),
            first_s=ENTERING_S + warm_up_s + round_s + (self._filling_s() if label == REPLAY else 0.0),
            leaving_s=self._scene.turn_s if label == BESIDE else 0.0,  # the batch that it waits for is waited for to the end
        )
        if label != REAL:
            return brief
        brief = self._scene.paced(brief, self._scene.config)
        return replace(brief, at_once=brief.needed if brief.needed * brief.first_s > there_s / 2 else 1)

    def _filling_s(self) -> float:
        """How long it takes to read the batches to replay, as many as there is time for; inf where that is not worth it."""
        if not self._scene.batch_s:
            return 0.0
        time_s, turn_s = MOST_TO_FILL * self._limit_s, self._scene.turn_s
        self.openers.batches = min(MOST_BATCHES, int(time_s / self._scene.batch_s))
        if self.openers.batches < LEAST_BATCHES or turn_s > time_s:
            return inf
        return max(turn_s, self.openers.batches * self._scene.batch_s)

    def after_rounds(self, ground: Ground, arms: Sequence[Arm]) -> None:
        """The experiments for which nobody trains, and a look inside a step: after the profiler every launch is slower."""
        for arm in arms:
            arm.leave()
        self.openers.close()
        if ground.journal:
            self._leave_out({record.label: NO_TIME for record in ground.journal.job.records if not record.rounds})
        for experiment in AFTER:
            self._carry_out(experiment)
        if self._proof_s:
            self._budget.extend(self._proof_s)
            left_s = self._budget.left_s() - self._inside_s
            if not prove(self._scene, left_s, ROUND_S * self._share, WARM_UP_S * self._share):
                self._leave_out({"cures": NO_TIME})
        if self._inside_s and self._budget.left_s() >= self._inside_s:
            look_inside(ground, arms, self._labels.index(DEVICE))

    def _carry_out(self, experiment: Experiment) -> None:
        """One experiment, unless it cannot be or does not fit; what it gave is on disk before the next begins."""
        ground, left_s = self._scene.ground, self._budget.left_s()
        if why := experiment.why_not(self._scene) or (NO_TIME if left_s < experiment.costs_s(self._scene) else ""):
            self._leave_out({experiment.field: why})
            return
        ground.begin(experiment.doing, ", ".join(filter(None, [experiment.doing, time_left(left_s)])))
        try:
            found = experiment.measure(self._scene)
        except LeftOut as reason:
            self._leave_out({experiment.field: str(reason)})
        else:
            if ground.journal and ground.journal.job.diagnosis:
                ground.journal.learn(ground.journal.job.diagnosis, **{experiment.field: found})

    def _leave_out(self, why: dict[str, str]) -> None:
        journal = self._scene.ground.journal
        if journal and journal.job.diagnosis:
            journal.learn(journal.job.diagnosis, left_out={**journal.job.diagnosis.left_out, **why})

    @property
    def _inside_s(self) -> float:
        return INSIDE_S if self._scene.ground.world.device.cuda else 0.0
