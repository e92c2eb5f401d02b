"""The recipe of a scaling job: the links before its trainings, a look at the communication after them, in the time that there is."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from ddpbench.bench.arm import Arm
from ddpbench.bench.ground import Ground
from ddpbench.bench.job_spec import OpenJournal, Recipe
from ddpbench.bench.round_plan import INSTANT_S, Brief
from ddpbench.bench.scaling import briefs
from ddpbench.bench.scaling.allreduce_arm import Communication
from ddpbench.bench.scaling.subset_arm import Rung, Wait
from ddpbench.bench.scheduler import enter_alone
from ddpbench.bench.terms import Terms
from ddpbench.bench.time_budget import NO_TIME, Budget
from ddpbench.distributed.allreduce_bench import bus_ceilings
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import Pulse
from ddpbench.record.errors import UsageError
from ddpbench.record.resolved import Settled
from ddpbench.record.scaling import APART, COMMUNICATION, Overlap, rung
from ddpbench.report.pages.scaling import render_scaling

LIMIT_S = 175.0
"""Without ``--time-limit``, with what it takes to start: under three minutes."""

LINKS_S = 8.0
"""How long the look at the links lasts at most; in a shorter limit less."""

INSIDE_S = 6.0

ONLY_FIRST_STEPS = Brief(0.0, warm_up_s=INSTANT_S)


class ScaleRecipe(Recipe):
    """One scaling job on one rank. ``ranks`` tells how many take part in an arm, by its label, in the order of the arms.

    Each is to have ``rounds``.
    """

    even = True

    _budget: Budget
    _wait: Wait
    _inside_s: float
    """From ``before_rounds`` on, which is given the ground that they stand on."""

    def __init__(self, open_journal: OpenJournal, limit_s: float | None, rounds: int, ranks: Mapping[str, int]) -> None:
        super().__init__(open_journal, render_scaling)
        self._limit_s, self._rounds, self._ranks = limit_s or LIMIT_S, rounds, ranks
        self._full = rung(max(ranks.values()))
        self._groups: dict[int, World] = {}
        self._buckets: list[int] = []

    def among(self, label: str, whole: World) -> World:
        """The ranks that take part in the arm of that label, with their process group once there is one."""
        ranks = self._ranks[label]
        return whole if ranks == whole.size else self._groups.get(ranks, whole.first(ranks))

    def before_rounds(self, ground: Ground) -> None:
        """How fast the links are while nobody trains, and the process groups of the rungs.

        The group of all ranks is used first, as in a run: one that is used when there is another may keep the kernels of a training
        waiting for a microsecond each (results/scaling/later_groups.py).
        """
        whole = ground.world
        refuse_different(self._ranks, whole)
        self._budget = Budget(self._limit_s, ground.began, whole)
        self._wait = Wait(whole, ground.pulse)
        self._inside_s = INSIDE_S if whole.device.cuda else 0.0
        ground.begin("measuring the links", "measuring how fast the ranks reduce together")
        reached = bus_ceilings(whole, LINKS_S * min(1.0, self._limit_s / LIMIT_S))
        if ground.journal:
            ground.journal.learn_of_scaling(bus=reached)
        self._groups = {ranks: whole.first(ranks).apart() for ranks in sorted({*self._ranks.values()} - {whole.size})}
        if whole.device.cuda:
            self._take_first_steps(ground)

    def _take_first_steps(self, ground: Ground) -> None:
        """Every rank by itself, all at once, in nobody's turn: libraries are loaded, and cuDNN looks for the fastest kernels."""
        ground.begin("taking first steps", "loading what a training needs")
        config = ground.configs[[*self._ranks].index(APART)]
        training = Arm(config, ground.world, ground.pulse, Terms(len(self._ranks), brief=ONLY_FIRST_STEPS))
        training.enter()
        training.leave()

    def brief(self, label: str) -> Brief:
        """How the training of that label takes its turns."""
        return briefs.brief_of(label, self._ranks, self._rounds, self._available_s())

    def rounds_end_s(self, limit_s: float | None, spent_s: float) -> float:
        """Early enough for what comes after them. The first is always tried."""
        return spent_s + self._available_s()

    def after_rounds_s(self) -> float:
        return self._inside_s

    def _available_s(self) -> float:
        """Seconds that rounds may still take together."""
        return max(0.0, self._budget.left_s() - self._inside_s)

    def arm(self, label: str, config: Settled, world: World, pulse: Pulse, terms: Terms) -> Arm:
        if label == COMMUNICATION:
            return Communication(config, world, pulse, terms, buckets=lambda: self._buckets)
        note_buckets = self._note_buckets if label == self._full else lambda sizes: None
        return Rung(config, world, pulse, terms, wait=self._wait, note_buckets=note_buckets)

    def _note_buckets(self, sizes: list[int]) -> None:
        self._buckets = sizes

    def after_rounds(self, ground: Ground, arms: Sequence[Arm]) -> None:
        """What was learned on the way; on GPUs a look at their communication kernels: after the profiler every launch is slower."""
        waiting = self._wait.cores()
        overlap = self._overlap(ground, arms) if self._inside_s and self._budget.left_s() >= self._inside_s else None
        if not (ground.journal and ground.journal.job.scaling):
            return
        scaling, unmeasured = ground.journal.job.scaling, {record.label for record in ground.journal.job.records if not record.rounds}
        left_out = {**scaling.left_out, **dict.fromkeys(unmeasured, NO_TIME)}
        ground.journal.learn_of_scaling(bucket_bytes=self._buckets, waiting_cores=waiting, overlap=overlap, left_out=left_out)

    def _overlap(self, ground: Ground, arms: Sequence[Arm]) -> Overlap | None:
        """Rank 0's alone."""
        ground.begin("profiling", "looking at the communication inside a step")
        full = arms[list(self._ranks).index(self._full)]
        assert isinstance(full, Rung), "the ladder is made of rungs"
        enter_alone(full, arms)
        return full.overlap()


def refuse_different(ranks: Mapping[str, int], world: World) -> None:
    """Raises UsageError where nodes of unequal size have laid out different ladders: their ranks would wait for each other for ever."""
    laid_out = float(zlib.crc32(repr([*ranks.items()]).encode()))
    if world.most(laid_out) != world.least(laid_out):
        raise UsageError("nodes with different numbers of ranks have no common ladder", "the same --nproc_per_node on every node")
