"""The recipe of a diagnosis: what is measured before the trainings and after them, in the time that there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ddpbench.analysis.remedies.training import DIAGNOSIS_S, PROOF_S
from ddpbench.bench.arm import Arm
from ddpbench.bench.diagnose import briefs
from ddpbench.bench.diagnose.alternatives import CANDIDATES, other_loaders
from ddpbench.bench.diagnose.copies import COPIES
from ddpbench.bench.diagnose.loaders import Openers
from ddpbench.bench.diagnose.measurements import ON_ALL_RANKS, ON_ONE_RANK
from ddpbench.bench.diagnose.node_state import SURROUNDINGS
from ddpbench.bench.diagnose.scene import Experiment, Scene
from ddpbench.bench.diagnose.stages import STAGES
from ddpbench.bench.diagnose.storage import STORAGE
from ddpbench.bench.diagnose.verify import prove
from ddpbench.bench.ground import Ground
from ddpbench.bench.inside import look_inside
from ddpbench.bench.job_spec import OpenJournal, Recipe
from ddpbench.bench.learned import OfDiagnosis
from ddpbench.bench.round_plan import Brief
from ddpbench.bench.time_budget import ENDING_S, NO_TIME, Budget
from ddpbench.data.loader import Opener
from ddpbench.record.diagnosis import DEVICE, REAL
from ddpbench.record.errors import ArmOver
from ddpbench.record.record import Record
from ddpbench.report.pages.diagnosis import render_diagnosis
from ddpbench.report.progress import time_left

WINDOW_S = 2.0
"""How long a loader is looked at alone, about, in the time that a diagnosis usually has."""

BEFORE = (SURROUNDINGS, ON_ALL_RANKS)
AFTER = (COPIES, ON_ONE_RANK, STAGES, CANDIDATES, STORAGE)
"""The storage last: it drops files from the page cache."""

INSIDE_S = 5.0
MOST_AFTER = 0.3
"""The share of the time that is kept free for what comes after the trainings, at most."""


class DiagnoseRecipe(Recipe):
    """One diagnosis on one rank. ``labels`` are those of its trainings, in the order of the arms.

    Where it is to ``verify`` what it predicts, ``limit_s`` is shared with that.
    """

    _budget: Budget
    _scene: Scene
    _experiments_s: float
    """From ``before_rounds`` on, which is given the ground that they stand on."""

    def __init__(self, open_journal: OpenJournal, limit_s: float | None, labels: Sequence[str], verify: bool) -> None:
        super().__init__(open_journal, render_diagnosis)
        self.openers = Openers()
        whole_s = DIAGNOSIS_S + (PROOF_S if verify else 0.0)
        self._limit_s, self._labels = DIAGNOSIS_S * (limit_s or whole_s) / whole_s, labels
        self._proof_s = (limit_s or whole_s) - self._limit_s
        self._share = briefs.share_of(self._limit_s)

    def before_rounds(self, ground: Ground) -> None:
        """The machine, while nothing runs, and the loader alone, by whose pace the rounds are laid out."""
        self._budget = Budget(self._limit_s, ground.began, ground.world, ENDING_S * min(1.0, self._share))
        self._scene = Scene(ground, ground.configs[self._labels.index(REAL)], self.openers, WINDOW_S * self._share)
        for experiment in BEFORE:
            self._carry_out(experiment)
        ground.pulse.enter("looking for other loaders")
        self._scene.others = other_loaders(self._scene.config, ground.world)
        wanted_s = sum(each.costs_s(self._scene) for each in self._after if not each.why_not(self._scene)) + self._inside_s
        self._experiments_s = min(wanted_s, MOST_AFTER * self._limit_s)

    def rounds_end_s(self, limit_s: float | None, spent_s: float) -> float:
        """Early enough for what comes after them. The first is always tried."""
        return spent_s + self._available_s()

    def after_rounds_s(self) -> float:
        return self._experiments_s + self._proof_s

    def opener(self, label: str) -> Opener:
        return self.openers.of(label)

    def answers(self, records: Sequence[Record]) -> Sequence[Record]:
        """The training as it was asked for, by which the command succeeds or fails."""
        return [record for record in records if record.label == REAL]

    def brief(self, label: str) -> Brief:
        """How the training of that label takes its turns."""
        return briefs.brief_of(label, self._scene, self._limit_s, self._available_s())

    def _available_s(self) -> float:
        """Seconds that rounds may still take together."""
        return max(0.0, self._budget.left_s() - self._experiments_s)

    def after_rounds(self, ground: Ground, arms: Sequence[Arm]) -> None:
        """The experiments for which nobody trains, and a look inside a step: after the profiler every launch is slower."""
        for arm in arms:
            arm.leave()
        self.openers.close()
        if ground.journal:
            self._leave_out({record.label: NO_TIME for record in ground.journal.job.records if not record.rounds})
        for experiment in self._after:
            self._carry_out(experiment)
        if self._proof_s:
            self._budget.extend(self._proof_s)
            left_s = self._budget.left_s() - self._inside_s
            if not prove(self._scene, left_s, briefs.ROUND_S * self._share, briefs.WARM_UP_S * self._share):
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
        except ArmOver as over:
            self._leave_out({experiment.field: over.message})
        else:
            if ground.journal:
                ground.journal.learn_of_diagnosis(**cast(OfDiagnosis, {experiment.field: found}))

    def _leave_out(self, why: dict[str, str]) -> None:
        journal = self._scene.ground.journal
        if journal and journal.job.diagnosis:
            journal.learn_of_diagnosis(left_out={**journal.job.diagnosis.left_out, **why})

    @property
    def _after(self) -> list[Experiment]:
        return [experiment for experiment in AFTER if experiment.is_needed(self._scene)]

    @property
    def _inside_s(self) -> float:
        return INSIDE_S if self._scene.ground.world.device.cuda else 0.0
