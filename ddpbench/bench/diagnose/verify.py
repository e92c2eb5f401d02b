"""Records the predicted gain of every remedy, then tries the most promising ones against the present configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from ddpbench.analysis.evidence import BOTTLENECK_FRACTION, MIN_VALUES_FOR_INTERVAL
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.remedies.loader import recommend_for_loader
from ddpbench.analysis.remedies.training import recommend
from ddpbench.analysis.whatif.outcome import config_fields, is_runnable
from ddpbench.analysis.whatif.query import diagnosed_input, predict_gain
from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.diagnose.context import ACTIVATION_S, DiagnosisContext
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
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.files import encode_json
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, Role, trial_role
from ddpbench.report.messages.roles import role_name
from ddpbench.report.progress import format_time_left

MAX_TRIALS = 2
"""Maximum number of remedies to try: each takes time from the others."""

TRIAL_ROUNDS = 6

MAX_TRIAL_ROUND_FRACTION = 1 / 3
"""Maximum fraction that one round takes of the time for an arm's required rounds; the rest is for warm-up."""

TRIALS_KEY = "to try"


def verify_predictions(context: DiagnosisContext, left_s: float, round_s: float, warm_up_s: float) -> bool:
    """Predict, then try the top remedies for which ``left_s`` suffices, in turns with the present configuration.

    Every rank calls this. Returns False if there are remedies to try, but no time for any.
    """
    ground, world, pace = context.job_context, context.job_context.world, RoundTimer()
    ground.enter_phase("predicting", "predicting what the cures gain")
    if ground.journal:
        world.store.set(TRIALS_KEY, encode_json(top_candidates(predict_and_record(ground.journal))).decode())
    world.barrier()
    cures = msgspec.json.decode(world.store.try_get(TRIALS_KEY) or "[]", type=list[Prediction])
    available_s = left_s - world.all_max(pace.elapsed_s)
    for complete, number in product((True, False), range(len(cures), 0, -1)):  # one remedy in full rounds proves more than two in short
        contenders = plan_trials(context, cures[:number], available_s, round_s, warm_up_s, complete)
        if expected_time_s(contenders) <= available_s:
            run_trials(context, contenders, pace, left_s)
            return True
    return not cures


@dataclass(frozen=True)
class Trial:
    """A configuration that takes turns with others: the present one, or a remedy."""

    role: Role
    config: ResolvedConfig
    round_plan: RoundPlan


def plan_trials(
    context: DiagnosisContext, candidates: Sequence[Prediction], available_s: float, round_s: float, warm_up_s: float, never_shortened: bool
) -> list[Trial]:
    """The present configuration and the remedies, planned for ``available_s``; ``never_shortened`` as in RoundPlan."""
    longest_s = MAX_TRIAL_ROUND_FRACTION * available_s / (MIN_VALUES_FOR_INTERVAL * (1 + len(candidates)))
    usual = RoundPlan(round_s, warm_up_s, 0.0, longest_s, MIN_VALUES_FOR_INTERVAL, first_round_s=ACTIVATION_S + warm_up_s + round_s)
    usual = replace(usual, never_shortened=never_shortened)
    present = msgspec.structs.replace(context.config, rounds=TRIAL_ROUNDS)
    contenders = [Trial(BASELINE_REPEAT, present, context.loader_paced(usual, present))]
    for cure in candidates:
        config = msgspec.structs.replace(present, **config_fields(cure.scenario))
        batches = present.batch_size / config.batch_size  # batches per present batch with the same number of images
        paced = context.loader_paced(replace(usual, dry_run=True), config, batches * (cure.gain or 1.0))
        contenders.append(Trial(trial_role(cure.scenario), config, paced))
    return contenders


def expected_time_s(trials: Sequence[Trial]) -> float:
    """Estimated seconds of all required rounds. In ABBA order, every second turn continues with the arm of the previous one."""
    present = trials[0].round_plan
    return sum(each.round_plan.reserved_rounds * each.round_plan.first_round_s for each in trials) - (present.reserved_rounds - 1) * (
        present.first_round_s - present.round_s
    )


def predict_and_record(journal: Journal) -> list[Prediction]:
    """All predictions, after they are recorded; empty if the run has no round."""
    job = journal.job
    try:
        predictions = predict_remedies(job)
    except BenchError:  # the run has no round
        return []
    journal.update_diagnosis(predictions=predictions)
    return predictions


def top_candidates(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The remedies to try, by descending gain."""
    possible = [each for each in predictions if each.gain is not None and is_runnable(each.scenario)]
    return sorted(possible, key=lambda each: -(each.gain or 0.0))[:MAX_TRIALS]


def predict_remedies(job: Job) -> list[Prediction]:
    """One prediction per remedy that changes the configuration.

    If the verdict is inconclusive but the ranks wait for data, this covers the remedies of a data-bound run.
    """
    judge_all(job)
    case, run = diagnosed_input(job)
    found = case.record.verdict
    if found is None:
        return []
    cures = recommend(run, case, found)
    if found.kind == "inconclusive" and case.data_wait_ms >= BOTTLENECK_FRACTION * case.step_ms:
        cures = recommend_for_loader(run, case, "data-bound")
    return [predict_gain(case, run, cure.scenario) for cure in cures if cure.scenario is not None]


def run_trials(context: DiagnosisContext, trials: Sequence[Trial], round_timer: RoundTimer, end_s: float) -> None:
    """Run rounds in ABBA order until ``end_s`` seconds on ``round_timer``. A remedy that fails is recorded as failed."""
    ground, briefs = context.job_context, [each.round_plan for each in trials]
    world, journal = ground.world, ground.journal
    opener = open_on_all_ranks(checking_factory(context.loader_factories.for_role(BASELINE)), world)
    first = journal.add_arms(trial_records(trials, context, journal.job.records[0].requested or context.config)) if journal else 0
    allowance = RoundDeadline(end_s, round_timer, world, briefs)
    arms = [
        Arm(
            each.config,
            world.for_device(each.config.device),
            ground.marker,
            ArmOptions(len(trials), loader_factory=opener, round_plan=each.round_plan),
        )
        for each in trials
    ]
    tried = ", ".join(each.role.scenario.flag_text for each in trials[1:] if each.role.scenario)
    ground.enter_phase("trying cures", f"trying {tried}, {format_time_left(end_s - round_timer.elapsed_s)}")
    round_timer.start_rounds({index: brief.first_round_s for index, brief in enumerate(briefs)})
    for index, measured in interleave(arms, allowance.has_time_for):
        round_timer.round_ended(index)
        if journal is None or measured is None:
            continue
        text = log_round(journal, first + index, arms[index], measured, journal.job.records[0].peak_throughput)
        ground.progress.stage(f"{role_name(trials[index].role)}: {text}")
    for arm in arms:
        arm.park()


def checking_factory(loader_factory: LoaderFactory) -> LoaderFactory:
    """Wrap ``loader_factory`` to check the configuration first: other worker counts may need more shared memory than there is."""

    def opened(config: ResolvedConfig, shard: Shard) -> Loader:
        check_loader(config, shard.dataset, shard.classes, shard.world_size)
        return loader_factory(config, shard)

    return opened


def trial_records(trials: Sequence[Trial], context: DiagnosisContext, requested: Config) -> list[Record]:
    """One record per arm, before it begins."""
    world = context.job_context.world
    return [new_record(requested, each.config, world.for_device(each.config.device), each.role) for each in trials]
