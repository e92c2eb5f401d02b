"""Predicts the gain of every remedy of a judged job, and chooses those to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ddpbench.analysis.remedies.recommend import recommend_for_loader
from ddpbench.analysis.remedies.script import is_tried_unpredicted, may_try
from ddpbench.analysis.summary import BOTTLENECK_FRACTION
from ddpbench.analysis.whatif.query import diagnosed_input, predict_gain
from ddpbench.record.prediction import FAST, Prediction, Scenario
from ddpbench.record.record import Job, Record

MAX_TRIALS = 2
"""Maximum number of remedies to try: each takes time from the others."""

KEPT_WORKERS = Scenario(persistent_workers=True)
"""Nothing but the starts of epochs changes."""


def predict_remedies(job: Job) -> list[Prediction]:
    """One prediction per remedy that changes the configuration.

    If the verdict is inconclusive but the ranks wait for data, this covers the remedies of a data-bound run. Raises UsageError if the run
    has no round.
    """
    inputs, run = diagnosed_input(job)
    verdict = inputs.record.verdict
    if verdict is None:
        return []
    if verdict.kind == "inconclusive" and inputs.data_wait_ms >= BOTTLENECK_FRACTION * inputs.step_ms:
        remedies = recommend_for_loader(run, inputs, "data-bound")
        return [predict_gain(inputs, run, remedy.scenario) for remedy in remedies if remedy.scenario is not None]
    judged = (job.diagnosis and job.diagnosis.remedies) or []
    return [remedy.prediction for remedy in judged if remedy.prediction is not None]


def predict_after_trials(job: Job) -> list[Prediction]:
    """The predictions of ``job``, with that of ``--fast`` if it could not be made before the trials, which are not used for them."""
    inputs, run = diagnosed_input(job)
    tried = [record.role.scenario for record in job.records]

    def late(missing: Prediction) -> Prediction:
        return msgspec.structs.replace(predict_gain(inputs, run, missing.scenario), after_trial=missing.scenario in tried)

    recorded = job.diagnosis.predictions if job.diagnosis else []
    return [late(each) if is_predicted_late(each) else each for each in recorded]


def is_predicted_late(prediction: Prediction) -> bool:
    """Whether a prediction that is missing may be made after the trials."""
    return prediction.gain is None and prediction.scenario == FAST


def top_candidates(
    predictions: Sequence[Prediction], can_try: Callable[[Scenario], bool], is_worth_a_guess: Callable[[Scenario], bool]
) -> list[Prediction]:
    """The remedies to try, by descending gain: those that can be tried and have a predicted gain, or are worth a trial without one."""
    possible = [each for each in predictions if can_try(each.scenario) and (each.gain or is_worth_a_guess(each.scenario))]
    return sorted(possible, key=lambda each: -(each.gain or 0.0))[:MAX_TRIALS]


def scenarios_to_try(predictions: Sequence[Prediction], record: Record, whole_epochs: bool = True) -> list[Scenario]:
    """The scenarios to try in the script of ``record``. Only windows of ``whole_epochs`` show what kept workers gain."""
    shown = [each for each in predictions if whole_epochs or each.scenario != KEPT_WORKERS]
    return [each.scenario for each in top_candidates(shown, lambda scenario: may_try(scenario, record), is_tried_unpredicted)]
