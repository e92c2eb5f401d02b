"""Records the predicted gain of every remedy, then tries the most promising ones against the present configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from ddpbench.analysis.command import config_fields, is_runnable
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.remedies.predict import is_predicted_late, predict_after_trials, predict_remedies, top_candidates
from ddpbench.analysis.stats import MIN_VALUES_FOR_INTERVAL
from ddpbench.bench.after_first_step import record_model_costs
from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.diagnose.context import ACTIVATION_S, DiagnosisContext
from ddpbench.bench.fast import resolve_fast
from ddpbench.bench.journal import Journal
from ddpbench.bench.preflight import new_record
from ddpbench.bench.progress_text import log_round
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.bench.scheduler import interleave
from ddpbench.bench.time_budget import RoundDeadline, RoundTimer
from ddpbench.data.loader import Loader, LoaderFactory
from ddpbench.data.loaders.open import open_on_all_ranks
from ddpbench.data.preflight import check_loader
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.io import encode_json
from ddpbench.record.prediction import FAST, Prediction
from ddpbench.record.record import Record
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, Role, trial_role
from ddpbench.report.messages.roles import role_name
from ddpbench.report.progress import format_time_left

TRIAL_ROUNDS = 6

MAX_TRIAL_ROUND_FRACTION = 1 / 3
"""Maximum fraction that one round takes of the time for an arm's required rounds; the rest is for warm-up."""

TRIALS_KEY = "trials"


def verify_predictions(context: DiagnosisContext, left_s: float, round_s: float, warmup_s: float) -> bool:
    """Predict, then try the top remedies for which ``left_s`` suffices, in turns with the present configuration.

    Every rank calls this. Returns False if there are remedies to try, but no time for any.
    """
    job_context, world, timer = context.job_context, context.job_context.world, RoundTimer()
    job_context.enter_phase("predicting", "predicting the gain of the remedies")
    if job_context.journal:
        candidates = top_candidates(
            predict_and_record(job_context.journal), is_runnable, lambda scenario: scenario == FAST and captures_step(context)
        )
        world.store.set(TRIALS_KEY, encode_json(candidates).decode())
    world.barrier()
    candidates = msgspec.json.decode(world.store.try_get(TRIALS_KEY) or "[]", type=list[Prediction])
    available_s = left_s - world.all_max(timer.elapsed_s)
    # one remedy in full rounds proves more than two in short ones
    for full_rounds, number in product((True, False), range(len(candidates), 0, -1)):
        trials = plan_trials(context, candidates[:number], available_s, round_s, warmup_s, full_rounds)
        if expected_time_s(trials) <= available_s:
            run_trials(context, trials, timer, left_s)
            return True
    return not candidates


@dataclass(frozen=True)
class Trial:
    """A configuration that takes turns with others: the present one, or a remedy."""

    role: Role
    config: ResolvedConfig
    round_plan: RoundPlan


def plan_trials(
    context: DiagnosisContext, candidates: Sequence[Prediction], available_s: float, round_s: float, warmup_s: float, never_shortened: bool
) -> list[Trial]:
    """The present configuration and the remedies, planned for ``available_s``; ``never_shortened`` as in RoundPlan."""
    longest_s = MAX_TRIAL_ROUND_FRACTION * available_s / (MIN_VALUES_FOR_INTERVAL * (1 + len(candidates)))
    plan = RoundPlan(round_s, warmup_s, 0.0, longest_s, MIN_VALUES_FOR_INTERVAL, first_round_s=ACTIVATION_S + warmup_s + round_s)
    plan = replace(plan, never_shortened=never_shortened)
    present = msgspec.structs.replace(context.config, rounds=TRIAL_ROUNDS)
    trials = [Trial(BASELINE_REPEAT, present, context.loader_paced(plan, present))]
    for prediction in candidates:
        config = msgspec.structs.replace(present, **config_fields(prediction.scenario))
        if config.fast and not present.fast:
            config = resolve_fast(context.requested, config)
        batches = present.batch_size / config.batch_size  # batches per present batch with the same number of images
        trial_plan = context.loader_paced(replace(plan, dry_run=True), config, batches * (prediction.gain or 1.0))
        trials.append(Trial(trial_role(prediction.scenario), config, trial_plan))
    return trials


def expected_time_s(trials: Sequence[Trial]) -> float:
    """Estimated seconds of all required rounds. In ABBA order, every second turn continues with the arm of the previous one."""
    present = trials[0].round_plan
    return sum(trial.round_plan.reserved_rounds * trial.round_plan.first_round_s for trial in trials) - (present.reserved_rounds - 1) * (
        present.first_round_s - present.round_s
    )


def predict_and_record(journal: Journal) -> list[Prediction]:
    """All predictions, after they are recorded; empty if the run has no round."""
    job = journal.job
    judge_all(job)
    try:
        predictions = predict_remedies(job)
    except BenchError:  # the run has no round
        return []
    journal.update_diagnosis(predictions=predictions)
    return predictions


def predict_fast_after_trials(journal: Journal) -> None:
    """Record what ``--fast`` is predicted to gain, if that was not known before the trials."""
    diagnosis = journal.job.diagnosis
    if diagnosis and any(map(is_predicted_late, diagnosis.predictions)):
        judge_all(journal.job)
        journal.update_diagnosis(predictions=predict_after_trials(journal.job))


def captures_step(context: DiagnosisContext) -> bool:
    """Whether ``--fast`` would replay the training's step as CUDA graphs, which it does not do now."""
    return resolve_fast(context.requested, context.config).cuda_graph and not context.config.cuda_graph


def run_trials(context: DiagnosisContext, trials: Sequence[Trial], round_timer: RoundTimer, end_s: float) -> None:
    """Run rounds in ABBA order until ``end_s`` seconds on ``round_timer``. A remedy that fails is recorded as failed."""
    job_context, round_plans = context.job_context, [trial.round_plan for trial in trials]
    world, journal = job_context.world, job_context.journal
    loader_factory = open_on_all_ranks(checking_factory(context.loader_factories.for_role(BASELINE)), world)
    first = 0
    if journal:
        first = journal.add_arms(trial_records(trials, context, journal.job.records[0]))
        record_model_costs(journal)
    deadline = RoundDeadline(end_s, round_timer, world, round_plans)
    arms = [
        Arm(
            trial.config,
            world.for_device(trial.config.device),
            job_context.marker,
            ArmOptions(len(trials), loader_factory=loader_factory, round_plan=trial.round_plan),
        )
        for trial in trials
    ]
    flags_text = ", ".join(trial.role.scenario.flag_text for trial in trials[1:] if trial.role.scenario)
    job_context.enter_phase("trying remedies", f"trying {flags_text}, {format_time_left(end_s - round_timer.elapsed_s)}")
    round_timer.start_rounds({index: round_plan.first_round_s for index, round_plan in enumerate(round_plans)})
    for index, measured in interleave(arms, deadline.has_time_for):
        round_timer.round_ended(index)
        if journal is None or measured is None:
            continue
        text = log_round(journal, first + index, arms[index], measured)
        job_context.progress.stage(f"{role_name(trials[index].role)}: {text}")
    for arm in arms:
        arm.park()


def checking_factory(loader_factory: LoaderFactory) -> LoaderFactory:
    """Wrap ``loader_factory`` to check the configuration first: other worker counts may need more shared memory than there is."""

    def opened(config: ResolvedConfig, shard: Shard) -> Loader:
        check_loader(config, shard.dataset, shard.classes, shard.world_size)
        return loader_factory(config, shard)

    return opened


def trial_records(trials: Sequence[Trial], context: DiagnosisContext, baseline: Record) -> list[Record]:
    """One record per arm, before it begins, with the peaks that ``baseline`` has."""
    world, requested = context.job_context.world, baseline.requested or context.config
    records = [new_record(requested, trial.config, world.for_device(trial.config.device), trial.role) for trial in trials]
    return [msgspec.structs.replace(record, peak_throughput=baseline.peak_throughput) for record in records]
