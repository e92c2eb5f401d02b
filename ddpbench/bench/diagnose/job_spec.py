"""The diagnosis job: what is measured before and after the control runs, within the time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ddpbench.analysis.remedies.training_rules import DIAGNOSIS_S, VERIFY_S
from ddpbench.bench.arm import Arm
from ddpbench.bench.diagnose import round_plans
from ddpbench.bench.diagnose.alternatives import ALTERNATIVE_LOADERS, alternative_configs
from ddpbench.bench.diagnose.context import DiagnosisContext, DiagnosisExperiment
from ddpbench.bench.diagnose.fast_work import bottleneck_to_predict, measure_fast_work
from ddpbench.bench.diagnose.loaders import LoaderFactories
from ddpbench.bench.diagnose.measurements import (
    H2D_COPIES,
    LOADER_ON_ALL_CORES,
    LOADER_ON_ALL_RANKS,
    LOADER_ON_ONE_RANK,
    LOADER_STAGES,
    NODE_STATES,
    STORAGE,
)
from ddpbench.bench.diagnose.verify import predict_fast_after_trials, verify_predictions
from ddpbench.bench.job_spec import JobContext, JobSpec, JournalFactory
from ddpbench.bench.journal import DiagnosisUpdate
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.bench.run import profile_arm
from ddpbench.bench.time_budget import WRAP_UP_S, TimeBudget
from ddpbench.data.loader import LoaderFactory
from ddpbench.record.config import Config
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.record import Record
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, Role, SkippedMeasurement
from ddpbench.report.progress import format_time_left

LOADER_WINDOW_S = 2.0
"""Approximate seconds per loader benchmark, under the usual time limit of a diagnosis."""

BEFORE_ROUNDS = (NODE_STATES, LOADER_ON_ALL_RANKS)
AFTER_ROUNDS = (H2D_COPIES, LOADER_ON_ONE_RANK, LOADER_STAGES, ALTERNATIVE_LOADERS, LOADER_ON_ALL_CORES, STORAGE)
"""Storage comes last, because it evicts files from the page cache."""

PROFILE_S = 5.0
FAST_WORK_S, FAST_TRIAL_S = 15.0, 30.0
"""Approximate seconds to measure what ``--fast`` is predicted from, and to try it."""

MAX_AFTER_ROUNDS_FRACTION = 0.3
"""Maximum fraction of the time that is reserved for what comes after the rounds."""


class DiagnoseJobSpec(JobSpec):
    """One diagnosis on one rank, with the ``roles`` of its control runs in the order of the arms.

    With ``verify``, trying the predictions gets its share of the time limit of ``requested``.
    """

    _budget: TimeBudget
    _context: DiagnosisContext
    _experiments_s: float
    """These three are set by ``before_rounds``, which receives the job context."""

    def __init__(self, open_journal: JournalFactory, requested: Config, roles: Sequence[Role], verify: bool) -> None:
        super().__init__(open_journal)
        self._requested, limit_s = requested, requested.time_limit
        self.loader_factories = LoaderFactories()
        default_limit_s = DIAGNOSIS_S + (VERIFY_S if verify else 0.0)
        self._limit_s, self._roles = DIAGNOSIS_S * (limit_s or default_limit_s) / default_limit_s, roles
        self._verify_s = (limit_s or default_limit_s) - self._limit_s
        self._time_scale = round_plans.time_scale(self._limit_s)

    def before_rounds(self, context: JobContext) -> None:
        """Measure the idle nodes, then the loader without training; its pace determines the length of the rounds."""
        self._budget = TimeBudget(self._limit_s, context.start, context.world, WRAP_UP_S * min(1.0, self._time_scale))
        config = context.configs[self._roles.index(BASELINE)]
        window_s = LOADER_WINDOW_S * self._time_scale
        self._context = DiagnosisContext(context, self._requested, config, self.loader_factories, window_s)
        for experiment in BEFORE_ROUNDS:
            self._run_experiment(experiment)
        context.marker.enter("checking other loaders")
        self._context.alternatives = alternative_configs(self._context.config, context.world)
        wanted_s = (
            sum(each.expected_s(self._context) for each in self._experiments_after_rounds if not each.skip_reason(self._context))
            + self._profile_s
        )
        self._experiments_s = min(wanted_s, MAX_AFTER_ROUNDS_FRACTION * self._limit_s)

    def rounds_end_s(self, limit_s: float | None, elapsed_s: float) -> float:
        """Early enough for what comes after the rounds. The first round is always tried."""
        return elapsed_s + self._available_s()

    def after_rounds_s(self) -> float:
        return self._experiments_s + self._verify_s

    def loader_factory(self, role: Role) -> LoaderFactory:
        return self.loader_factories.for_role(role)

    def graded_records(self, records: Sequence[Record]) -> Sequence[Record]:
        """The baseline's record, which decides whether the command succeeds."""
        return [record for record in records if record.role == BASELINE]

    def round_plan(self, role: Role) -> RoundPlan:
        """Length and number of rounds of the control run with that role."""
        return round_plans.diagnose_round_plan(role, self._context, self._limit_s, self._available_s())

    def _available_s(self) -> float:
        """Seconds left for all rounds together."""
        return max(0.0, self._budget.remaining_s() - self._experiments_s)

    def after_rounds(self, context: JobContext, arms: Sequence[Arm]) -> None:
        """Run the experiments that need idle devices, then verify and profile.

        The profiler slows every later launch. Before the trials, it runs only for a training that does not wait for launches.
        """
        for arm in arms:
            arm.park()
        self.loader_factories.close()
        if context.journal:
            self._record_skipped(
                *(SkippedMeasurement(record.role, "no_time_left") for record in context.journal.job.records if not record.rounds)
            )
        for experiment in self._experiments_after_rounds:
            self._run_experiment(experiment)
        if self._verify_s:
            self._verify(context, arms)
        if self._profile_s and self._budget.remaining_s() >= self._profile_s:
            profile_arm(context, arms, self._roles.index(COMPUTE_ONLY))
        if self._verify_s and context.journal:
            predict_fast_after_trials(context.journal)

    def _verify(self, context: JobContext, arms: Sequence[Arm]) -> None:
        """Predict and try remedies.

        What ``--fast`` gains is predicted before its trial, unless the profiler would slow down the launches of the trial's baseline.
        """
        self._budget.extend(self._verify_s)
        bottleneck = bottleneck_to_predict(self._context) if COMPUTE_ONLY in self._roles else ""
        left_s = self._budget.remaining_s() - self._profile_s
        if bottleneck == "compute-bound" and left_s >= FAST_WORK_S:
            measure_fast_work(self._context, arms, self._roles.index(COMPUTE_ONLY))
            left_s = self._budget.remaining_s() - self._profile_s
        elif bottleneck == "launch-bound" and left_s >= FAST_WORK_S + FAST_TRIAL_S:
            left_s -= FAST_WORK_S
        if not verify_predictions(
            self._context, left_s, round_plans.DIAGNOSE_ROUND_S * self._time_scale, round_plans.DIAGNOSE_WARMUP_S * self._time_scale
        ):
            self._record_skipped(SkippedMeasurement("trials", "no_time_left"))
        if bottleneck == "launch-bound" and self._budget.remaining_s() - self._profile_s >= FAST_WORK_S / 2:  # trials may end late
            measure_fast_work(self._context, arms, self._roles.index(COMPUTE_ONLY))

    def _run_experiment(self, experiment: DiagnosisExperiment) -> None:
        """Run one experiment and save its result, or record why it was skipped."""
        job_context, left_s = self._context.job_context, self._budget.remaining_s()
        reason = experiment.skip_reason(self._context) or ("no_time_left" if left_s < experiment.expected_s(self._context) else None)
        if reason:
            self._record_skipped(SkippedMeasurement(experiment.field, reason, self._context.config.loader))
            return
        job_context.enter_phase(experiment.phase, ", ".join(filter(None, [experiment.phase, format_time_left(left_s)])))
        try:
            result = experiment.measure(self._context)
        except ConfigFailed as over:
            self._record_skipped(SkippedMeasurement(experiment.field, "failed", error=over.message))
        else:
            if job_context.journal:
                job_context.journal.update_diagnosis(**cast(DiagnosisUpdate, {experiment.field: result}))

    def _record_skipped(self, *skipped: SkippedMeasurement) -> None:
        journal = self._context.job_context.journal
        if journal and journal.job.diagnosis:
            journal.update_diagnosis(skipped=[*journal.job.diagnosis.skipped, *skipped])

    @property
    def _experiments_after_rounds(self) -> list[DiagnosisExperiment]:
        return [experiment for experiment in AFTER_ROUNDS if experiment.is_needed(self._context)]

    @property
    def _profile_s(self) -> float:
        return PROFILE_S if self._context.job_context.world.device.is_cuda else 0.0
