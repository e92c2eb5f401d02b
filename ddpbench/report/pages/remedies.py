"""Remedies with predicted and measured gains and their commands; then the one to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.remedies.script import is_tried_unpredicted, script_change
from ddpbench.analysis.whatif.gain import PREDICTION_CONFIDENCE
from ddpbench.analysis.whatif.outcome import PredictionOutcome, command_with, is_runnable, outcomes
from ddpbench.analysis.whatif.query import predict_gain
from ddpbench.record.prediction import TRIED_UNPREDICTED, Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import BASELINE_REPEAT
from ddpbench.record.verdict import ChangeDataLoader, RunCommand
from ddpbench.report.layout import GOOD, LABEL, Page, styled, wrap_command, wrap_text
from ddpbench.report.messages.arms import throughput_unit
from ddpbench.report.messages.remedies import (
    NO_GAIN_PREDICTED,
    NO_TRIAL_WORKED,
    NOTHING_FASTER,
    NOTHING_TRIED,
    TOO_NOISY,
    outcome_text,
    prediction_text,
    remedy_name,
    remedy_reason,
    savings_text,
)
from ddpbench.report.messages.sample_comparison import NOT_COMPARED, comparison_text
from ddpbench.report.messages.verdict import next_step_text

NEXT_COMMAND_NOTE = "see 'next' for the command"


def remedy_lines(inputs: AnalysisInput, job: Job, page: Page, verbose: bool = False, *, has_next: bool = True) -> Iterator[Text]:
    """Predicted gain, measured result and command of each remedy, largest gain first.

    Empty if they add nothing to the next command of the verdict. ``verbose`` adds the reason for each, which is always printed without a
    gain or command. With ``has_next`` the page shows the verdict's next command, which is not repeated. Recorded predictions that could
    be tried but are not among the verdict's remedies follow.
    """
    record, run, verdict = inputs.record, CommandBuilder.of(inputs.record, job), inputs.record.verdict
    remedies = sorted(recommend(run, inputs, verdict), key=lambda remedy: -(remedy.gain or 0.0)) if verdict else []
    recorded = {
        each.prediction.scenario: each for each in outcomes(job) if each.prediction.gain is not None or each.measured or each.failed
    }
    next_command = verdict.next.command if has_next and verdict and isinstance(verdict.next, RunCommand) else ""
    shown = [*remedies, *(outcome for outcome in recorded.values() if is_runnable(outcome.prediction.scenario))]
    if not shown or (not recorded and all(remedy.command == next_command and not remedy_reason(remedy, record) for remedy in remedies)):
        return
    tried = any(each.measured for each in recorded.values())
    yield from styled([f"remedies, predicted ({PREDICTION_CONFIDENCE:.0%}){' and measured (95%)' if tried else ''}"], LABEL)
    for remedy in remedies:
        outcome = recorded.pop(remedy.scenario, None) if remedy.scenario else None
        gain = outcome_text(outcome) if outcome else prediction_text(predict_gain(inputs, run, remedy.scenario)) if remedy.scenario else ""
        says_enough = bool(gain and remedy.command) or (outcome is not None and outcome.failed is not None)
        reason = remedy_reason(remedy, record, job.diagnosis) if verbose or not says_enough else ""
        is_next = bool(remedy.command) and remedy.command == next_command
        yield from _remedy_line(remedy_name(remedy, record), [gain, reason, NEXT_COMMAND_NOTE if is_next else ""], page)
        yield from styled(wrap_command("    ", remedy.command, page) if remedy.command and not is_next else [])
    for scenario, outcome in recorded.items():
        if is_runnable(scenario):
            yield from _remedy_line(_setting_name(scenario, record), [outcome_text(outcome)], page)


def comparison_lines(record: Record, page: Page) -> Iterator[Text]:
    """What is known of the samples that workers read; empty if nothing was compared, and no other workers are suggested."""
    if record.script is None:
        return
    text = comparison_text(record.script.sample_comparison) if record.script.sample_comparison else ""
    next_step = record.verdict.next if record.verdict else None
    if not text and isinstance(next_step, ChangeDataLoader) and next_step.num_workers:
        text = NOT_COMPARED
    if text:
        yield from styled(wrap_text("samples  ", text, page), LABEL, len("samples"))


def _setting_name(scenario: Scenario, record: Record) -> str:
    return scenario.flag_text if record.script is None else next_step_text(script_change(scenario, record))


def _remedy_line(name: str, parts: Sequence[str], page: Page) -> list[Text]:
    return styled(wrap_text("  ", f"{name}: {'; '.join(filter(None, parts))}", page), LABEL, 2 + len(name))


def recommendation_lines(job: Job, best: PredictionOutcome | None, page: Page) -> Iterator[Text]:
    """The command to use from now on, and its gain: of ``best``, the ``best_outcome`` of ``job``.

    Empty until a remedy that can be tried has been tried, and without predictions, unless a script waits for data. The present settings of
    a data-bound run are not recommended if nothing could be tried.
    """
    predictions, baseline = outcomes(job), baseline_of(job)
    if baseline is None or not (predictions or _needs_a_remedy(baseline)):
        return
    if best is None or best.measured is None:
        if choice := _choice_without_gain(predictions, baseline):
            yield from styled(wrap_text("  use   ", choice, page), LABEL, len("  use"))
        return
    savings = savings_text(best.measured, _samples_per_s(job), baseline, throughput_unit(baseline))
    yield from styled(wrap_command("  use   ", _setting(job, best, baseline), page), GOOD)
    yield from styled(wrap_text("  worth ", savings, page), LABEL, len("  worth"))


def _choice_without_gain(predictions: Sequence[PredictionOutcome], baseline: Record) -> str:
    """What to use if no trial has gained anything; empty if one that is worth it has not been tried yet."""
    is_data_bound = _waits_for_data(baseline)
    if any(each.measured and each.measured.has_interval for each in predictions):
        return f"the current settings: {TOO_NOISY if any(map(_may_gain, predictions)) else NOTHING_FASTER}"
    if any(each.failed for each in predictions):
        return f"undecided: {NO_TRIAL_WORKED}" if is_data_bound else f"the current settings: {NOTHING_FASTER}"
    if any(_is_worth_trying(each, baseline) for each in predictions):
        return ""
    return f"undecided: {NOTHING_TRIED}" if is_data_bound else f"the current settings: {NO_GAIN_PREDICTED}"


def _needs_a_remedy(baseline: Record) -> bool:
    """Whether a script waits for data, and nothing is suggested."""
    return baseline.script is not None and _waits_for_data(baseline) and baseline.verdict is not None and baseline.verdict.next is None


def _waits_for_data(baseline: Record) -> bool:
    return baseline.verdict is not None and baseline.verdict.kind in ("data-bound", "epoch-start-bound")


def _is_worth_trying(outcome: PredictionOutcome, baseline: Record) -> bool:
    """Whether a trial can tell its gain. Some are also tried where their gain is not predicted."""
    prediction = outcome.prediction
    is_guess = baseline.script is not None and is_tried_unpredicted(prediction.scenario)
    return is_runnable(prediction.scenario) and (prediction.gain is not None or is_guess or prediction.scenario in TRIED_UNPREDICTED)


def _may_gain(outcome: PredictionOutcome) -> bool:
    """Whether its trial varied too much to tell if it gains."""
    return outcome.is_wide and outcome.measured is not None and outcome.measured.has_interval and outcome.measured.high > 1


def is_next_step_tried(job: Job, baseline: Record) -> bool:
    """Whether the next step of the verdict is a setting that ``job`` has tried, even in vain: its trial says more."""
    if baseline.verdict is None or baseline.verdict.next is None:
        return False
    return next_step_text(baseline.verdict.next) in [
        _setting(job, each, baseline) for each in outcomes(job) if each.failed or (each.measured and each.measured.has_interval)
    ]


def _setting(job: Job, outcome: PredictionOutcome, baseline: Record) -> str:
    """The command, or what to write in the script, with what ``outcome`` has tried."""
    scenario = outcome.prediction.scenario
    return next_step_text(script_change(scenario, baseline)) if baseline.script is not None else command_with(job, scenario)


def _samples_per_s(job: Job) -> float:
    """Throughput of the baseline in the rounds interleaved with the trials."""
    baseline = next(record for record in job.records if record.role == BASELINE_REPEAT)
    return sum(timed.samples for timed in baseline.rounds) / sum(timed.wall_s for timed in baseline.rounds)
