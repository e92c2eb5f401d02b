"""The remedies of a diagnosis as its record holds them, with what was predicted and measured; and what to use in the end."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ddpbench.analysis.command import CommandBuilder, command_with, is_runnable
from ddpbench.analysis.compare import COMPARABLE_STATUSES, throughput_ratio
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.screened import measured_gain, screened_remedies, training_change
from ddpbench.analysis.remedies.script import (
    dataloader_change,
    is_script_change,
    is_tried_unpredicted,
    other_samples,
    pinned_memory_change,
)
from ddpbench.analysis.run_length import missing_batches
from ddpbench.analysis.screening import advised_cures, is_too_noisy, is_within_rounding, kept_cures, screened_gain, together
from ddpbench.analysis.whatif.query import predict_gain
from ddpbench.record.prediction import FAST, Prediction, Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.remedy import Advice, AnyRemedy, MeasuredGain, Remedy, Worth
from ddpbench.record.roles import BASELINE_REPEAT, trial_role
from ddpbench.record.screening import NULL
from ddpbench.record.verdict import NextStep, RunCommand


def outcomes(job: Job) -> list[Remedy]:
    """One remedy per recorded prediction of a diagnosis with what its trial measured, largest predicted gain first."""
    if job.diagnosis is None:
        return []
    by_role = {record.role: record for record in job.records}
    found = [_outcome(each, by_role.get(trial_role(each.scenario)), by_role.get(BASELINE_REPEAT)) for each in job.diagnosis.predictions]
    return sorted(found, key=lambda each: -(each.gain or 0.0))


def _outcome(prediction: Prediction, trial: Record | None, baseline: Record | None) -> Remedy:
    scenario = prediction.scenario
    remedy = Remedy(
        code="other-setting", scenario=scenario, gain=prediction.gain, prediction=prediction, can_be_tried=is_runnable(scenario)
    )
    if trial is None or baseline is None:
        return remedy
    if failed := next((arm for arm in (trial, baseline) if arm.status not in COMPARABLE_STATUSES), None):
        return replace(remedy, failure=failure_of(failed))
    ratio = throughput_ratio(trial, baseline)
    if ratio is None:
        return remedy
    return replace(remedy, measured=measured_gain(ratio), missing_batches=max(map(missing_batches, (trial, baseline))))


def failure_of(record: Record) -> str:
    """Why ``record`` has no figure: its fault, or the check that its figure failed."""
    if record.fault:
        return record.fault.message
    return next((check.code for check in record.checks if check.severity == "error"), "no round finished")


def judged_remedies(job: Job, recommended: Sequence[AnyRemedy], inputs: AnalysisInput, builder: CommandBuilder) -> list[AnyRemedy]:
    """The ``recommended`` remedies with their predictions and trials, then what was predicted before and is not among them.

    Those that were tried come first, then by gain.
    """
    recorded = {each.scenario: each for each in outcomes(job) if each.gain is not None or each.measured or each.failure}
    judged: list[AnyRemedy] = []
    for remedy in recommended:
        outcome = recorded.pop(remedy.scenario, None) if remedy.scenario else None
        if outcome is not None:
            remedy = replace(
                remedy,
                prediction=outcome.prediction,
                measured=outcome.measured,
                failure=outcome.failure,
                missing_batches=outcome.missing_batches,
            )
        elif remedy.scenario is not None:
            remedy = replace(remedy, prediction=predict_gain(inputs, builder, remedy.scenario))
        judged.append(in_terms_of(remedy, inputs.record))
    judged += [in_terms_of(each, inputs.record) for each in recorded.values() if each.can_be_tried]
    if job.diagnosis and job.diagnosis.screening:
        judged += screened_remedies(job.diagnosis.screening, inputs.record)
    return sorted(judged, key=lambda each: (each.measured is None, -(each.gain or 0.0)))


def in_terms_of(remedy: AnyRemedy, record: Record) -> AnyRemedy:
    """``remedy`` with whether it can be tried here and, if ``record`` is of a user's script, with what to write in that."""
    scenario = remedy.scenario
    can_be_tried = scenario is not None and is_runnable(scenario)
    if record.script is None:
        return replace(remedy, can_be_tried=can_be_tried)
    change: NextStep | None = None
    if remedy.code == "pinned-memory-and-worker":
        change = pinned_memory_change(record)
    elif scenario is not None and is_script_change(scenario):
        change = dataloader_change(scenario, record)
    others = scenario is not None and other_samples(scenario, record) is not None
    return replace(remedy, can_be_tried=can_be_tried, change=change, reads_other_samples=others)


def best_remedy(remedies: Sequence[Remedy]) -> Remedy | None:
    """The remedy with the largest measured gain; None if none is a gain beyond the noise."""
    return max((each for each in remedies if each.is_gain), key=lambda each: each.measured.center if each.measured else 0.0, default=None)


def advise(job: Job) -> Advice | None:
    """What to use from now on, by the trials of ``job`` and by what was screened; None if neither says anything.

    What a training that waits for data computes with comes after what ends its waits.
    """
    advice, baseline = _advise_by_trials(job), baseline_of(job)
    screening = job.diagnosis.screening if job.diagnosis else None
    if screening is None or baseline is None or not baseline.rounds:
        return advice
    kept = advised_cures(screening)
    if gain := together(kept):
        computing = training_change([each.code for each in kept], baseline)
        if not (_waits_for_data(baseline) or (advice and advice.code == "change")):
            advice = Advice(code="screened")
        return advice and replace(advice, computing=computing, computing_gain=measured_gain(gain))
    if advice is None and kept_cures(screening):
        is_refused = screening.loss_comparison is not None and not is_within_rounding(screening.loss_comparison)
        return Advice(code="keep-other-losses" if is_refused else "keep-changes-numbers")
    if advice is None and any(screened_gain(each) for each in screening.cures if each.code != NULL):
        return Advice(code="keep-too-noisy" if is_too_noisy(screening) else "keep-nothing-faster")
    return advice


def _advise_by_trials(job: Job) -> Advice | None:
    """What to use by the trials of remedies.

    None until a remedy that can be tried has been tried, and without predictions, unless a script waits for data. The present settings of
    a data-bound run are not recommended if nothing could be tried.
    """
    tried, baseline = outcomes(job), baseline_of(job)
    if baseline is None or not (tried or _needs_a_remedy(baseline)):
        return None
    best = best_remedy(tried)
    if best is not None and best.measured is not None and best.scenario is not None:
        return Advice(
            code="change",
            change=_change(job, best.scenario, baseline),
            scenario=best.scenario,
            worth=_worth(best.measured, baseline) if baseline.throughput else None,
        )
    is_data_bound = _waits_for_data(baseline)
    if any(each.measured and each.measured.has_interval for each in tried):
        return Advice(code="keep-too-noisy" if any(map(_may_gain, tried)) else "keep-nothing-faster")
    if any(each.failure for each in tried):
        return Advice(code="undecided-no-trial-worked" if is_data_bound else "keep-nothing-faster")
    if any(_is_worth_trying(each, baseline) for each in tried):
        return None
    if not is_data_bound:
        return Advice(code="keep-no-gain-predicted")
    compared = baseline.script and baseline.script.sample_comparison
    return Advice(code="undecided-other-samples" if compared and compared.changes_samples else "undecided-nothing-to-try")


def _change(job: Job, scenario: Scenario, baseline: Record) -> NextStep:
    return dataloader_change(scenario, baseline) if baseline.script is not None else RunCommand(command_with(job, scenario))


def _worth(gain: MeasuredGain, baseline: Record) -> Worth:
    assert baseline.throughput is not None, "a gain is that of a figure"
    figure, hours = baseline.throughput.samples_per_s, 24.0 * baseline.world_size
    center, low, high = ((times - 1) * figure for times in (gain.center, gain.low, gain.high))
    saved = (1 - 1 / gain.center) * hours
    return Worth(samples_per_s=center, samples_per_s_low=low, samples_per_s_high=high, saved_hours_per_day=saved, hours_per_day=hours)


def _needs_a_remedy(baseline: Record) -> bool:
    """Whether a script waits for data, and nothing is suggested."""
    return baseline.script is not None and _waits_for_data(baseline) and baseline.verdict is not None and baseline.verdict.next is None


def _waits_for_data(baseline: Record) -> bool:
    return baseline.verdict is not None and baseline.verdict.kind in ("data-bound", "epoch-start-bound")


def _is_worth_trying(remedy: Remedy, baseline: Record) -> bool:
    """Whether a trial can tell its gain. Some are also tried where their gain is not predicted."""
    scenario = remedy.scenario
    is_guess = baseline.script is not None and scenario is not None and is_tried_unpredicted(scenario)
    return remedy.can_be_tried and (remedy.gain is not None or is_guess or scenario == FAST)


def _may_gain(remedy: Remedy) -> bool:
    """Whether its trial varied too much to tell if it gains."""
    return remedy.is_wide and remedy.measured is not None and remedy.measured.has_interval and remedy.measured.high > 1
