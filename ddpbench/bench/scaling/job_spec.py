"""The scaling job: all-reduce bandwidth first, then the ladder, then a profiled step."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.job_spec import JobContext, JobSpec, JournalFactory
from ddpbench.bench.round_plan import MIN_STEP_S, TARGET_ROUND_S, RoundPlan
from ddpbench.bench.scaling.allreduce_arm import AllReduceArm
from ddpbench.bench.scaling.subset_arm import IdleBarrier, SubsetArm
from ddpbench.bench.scheduler import load_exclusively
from ddpbench.bench.time_budget import TimeBudget
from ddpbench.distributed.bandwidth import measure_busbw
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.roles import ALLREDUCE_ONLY, INDEPENDENT, WITH_DATA, Role, SkippedMeasurement, ddp_role
from ddpbench.record.scaling import Overlap

DEFAULT_LIMIT_S = 175.0
"""Default for ``--time-limit``, startup included: under three minutes."""

MAX_BUSBW_S = 8.0
"""Maximum seconds for the all-reduce bandwidth; less under a shorter limit."""

PROFILE_S = 6.0

FIRST_STEPS_PLAN = RoundPlan(0.0, warmup_s=MIN_STEP_S)


class ScaleJobSpec(JobSpec):
    """One scaling job on one rank, with ``rounds`` rounds per arm.

    ``ranks_by_role`` gives the number of ranks in each arm, in the order of the arms.
    """

    equal_rounds = True

    # set by ``before_rounds``, which receives the job context
    _budget: TimeBudget
    _barrier: IdleBarrier
    _profile_s: float

    def __init__(self, open_journal: JournalFactory, limit_s: float | None, rounds: int, ranks_by_role: Mapping[Role, int]) -> None:
        super().__init__(open_journal)
        self._limit_s, self._rounds, self._ranks_by_role = limit_s or DEFAULT_LIMIT_S, rounds, ranks_by_role
        self._full_role = ddp_role(max(ranks_by_role.values()))
        self._groups: dict[int, World] = {}
        self._bucket_bytes: list[int] = []

    def ranks_for(self, role: Role, world: World) -> World:
        """The ranks of the arm with that role, with their process group once it exists."""
        ranks = self._ranks_by_role[role]
        return world if ranks == world.size else self._groups.get(ranks, world.subset(ranks))

    def before_rounds(self, context: JobContext) -> None:
        """Measure the all-reduce bandwidth without training, and create the process groups of the ladder.

        The group of all ranks is used first, as in a run: a group that is used while there is another one may delay each kernel of a
        training by a microsecond (results/scaling/later_groups.py).
        """
        world = context.world
        check_same_ladder(self._ranks_by_role, world)
        self._budget = TimeBudget(self._limit_s, context.start, world)
        self._barrier = IdleBarrier(world, context.marker)
        self._profile_s = PROFILE_S if world.device.is_cuda else 0.0
        context.enter_phase("measuring all-reduce bandwidth", "measuring all-reduce bandwidth")
        busbw = measure_busbw(world, MAX_BUSBW_S * min(1.0, self._limit_s / DEFAULT_LIMIT_S))
        if context.journal:
            context.journal.update_scaling(allreduce_busbw=busbw)
        self._groups = {ranks: world.subset(ranks).new_group() for ranks in sorted({*self._ranks_by_role.values()} - {world.size})}
        if world.device.is_cuda:
            self._run_first_steps(context)

    def _run_first_steps(self, context: JobContext) -> None:
        """Train a few steps on every rank independently, outside any round: this loads libraries and lets cuDNN pick its kernels."""
        context.enter_phase("running the first steps", "loading libraries and choosing cuDNN algorithms")
        config = context.configs[[*self._ranks_by_role].index(INDEPENDENT)]
        arm = Arm(config, context.world, context.marker, ArmOptions(len(self._ranks_by_role), round_plan=FIRST_STEPS_PLAN))
        arm.activate()
        arm.park()

    def round_plan(self, role: Role) -> RoundPlan:
        """Length and number of rounds of the arm with that role."""
        return scale_round_plan(role, self._ranks_by_role, self._rounds, self._available_s())

    def rounds_end_s(self, limit_s: float | None, elapsed_s: float) -> float:
        """The end of the rounds, early enough for the profile after them. The first round is always tried."""
        return elapsed_s + self._available_s()

    def after_rounds_s(self) -> float:
        return self._profile_s

    def _available_s(self) -> float:
        """Seconds left for all rounds together."""
        return max(0.0, self._budget.remaining_s() - self._profile_s)

    def make_arm(self, role: Role, config: ResolvedConfig, world: World, marker: ProgressMarker, options: ArmOptions) -> Arm:
        if role == ALLREDUCE_ONLY:
            return AllReduceArm(config, world, marker, options, get_bucket_bytes=lambda: self._bucket_bytes)
        on_bucket_bytes = self._set_bucket_bytes if role == self._full_role else lambda sizes: None
        return SubsetArm(config, world, marker, options, barrier=self._barrier, on_bucket_bytes=on_bucket_bytes)

    def _set_bucket_bytes(self, sizes: list[int]) -> None:
        self._bucket_bytes = sizes

    def after_rounds(self, context: JobContext, arms: Sequence[Arm]) -> None:
        """Record what was measured along with the rounds; on GPUs, profile communication last, because it slows every later launch."""
        busy_wait_cores = self._barrier.busy_wait_cores()
        overlap = self._profile_overlap(context, arms) if self._profile_s and self._budget.remaining_s() >= self._profile_s else None
        if not (context.journal and context.journal.job.scaling):
            return
        scaling, unmeasured = context.journal.job.scaling, [record.role for record in context.journal.job.records if not record.rounds]
        skipped = [*scaling.skipped, *(SkippedMeasurement(role, "no_time_left") for role in unmeasured)]
        context.journal.update_scaling(bucket_bytes=self._bucket_bytes, busy_wait_cores=busy_wait_cores, overlap=overlap, skipped=skipped)

    def _profile_overlap(self, context: JobContext, arms: Sequence[Arm]) -> Overlap | None:
        """Profile the all-reduces of the arm on all ranks; None on every rank but 0."""
        context.enter_phase("profiling", "profiling the all-reduces in a step")
        full_arm = arms[list(self._ranks_by_role).index(self._full_role)]
        assert isinstance(full_arm, SubsetArm), "every arm with DDP is a SubsetArm"
        load_exclusively(full_arm, arms)
        return full_arm.profile_overlap()


def check_same_ladder(ranks_by_role: Mapping[Role, int], world: World) -> None:
    """Raises UsageError if nodes of unequal size have built different ladders: their ranks would wait for each other forever."""
    checksum = float(zlib.crc32(repr([*ranks_by_role.items()]).encode()))
    if world.all_max(checksum) != world.all_min(checksum):
        raise UsageError("scale needs the same number of ranks on every node", "use the same --nproc_per_node on every node")


SCALE_MIN_ROUND_S = 0.5

SCALE_ACTIVATION_S = 1.5
"""Estimated seconds of a turn besides its round: building the model, warming up, parking."""

WITH_DATA_SLOWDOWN = 3.0
"""A turn with data takes as long as this many other turns: workers start, and batches come slowly."""


def scale_round_plan(role: Role, roles: Collection[Role], rounds: int, available_s: float) -> RoundPlan:
    """The RoundPlan of the arm ``role``, if all arms in ``roles`` share ``available_s`` seconds for ``rounds`` rounds each."""
    turn_s = available_s / rounds / (len(roles) + (WITH_DATA_SLOWDOWN - 1) * (WITH_DATA in roles))
    round_s = min(TARGET_ROUND_S, max(SCALE_MIN_ROUND_S, turn_s - SCALE_ACTIVATION_S))
    plan = RoundPlan(round_s, warmup_s=max(1.0, round_s), first_round_s=SCALE_ACTIVATION_S + round_s)
    return (
        replace(
            plan,
            warmup_s=WITH_DATA_SLOWDOWN * round_s,
            max_round_s=WITH_DATA_SLOWDOWN * round_s,
            first_round_s=WITH_DATA_SLOWDOWN * plan.first_round_s,
        )
        if role == WITH_DATA
        else plan
    )
