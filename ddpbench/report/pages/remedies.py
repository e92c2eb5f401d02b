"""Remedies with predicted and measured gains and their commands; then the one to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.training import next_command, recommend
from ddpbench.analysis.stats import Interval, PairedRatio
from ddpbench.analysis.text import device_noun
from ddpbench.analysis.whatif.gain import CONFIDENCE
from ddpbench.analysis.whatif.outcome import PredictionOutcome, best_outcome, command_with, is_runnable, outcomes
from ddpbench.analysis.whatif.query import predict_gain
from ddpbench.record.diagnosis import BASELINE_REPEAT
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Job, Record
from ddpbench.record.text import pluralize
from ddpbench.report.format import format_rounded, format_with_interval
from ddpbench.report.layout import GOOD, LABEL, Page, styled, wrap_command, wrap_text
from ddpbench.report.pages.header import throughput_unit
from ddpbench.report.pages.whatif import gain_text

NEXT_COMMAND_NOTE = "the command behind 'next'"


def remedy_lines(inputs: AnalysisInput, job: Job, page: Page, verbose: bool = False) -> Iterator[Text]:
    """Predicted gain, measured result and command of each remedy, largest gain first.

    Empty if the next command of the verdict says it all. ``verbose`` adds what each is good for, which is always printed if there is no
    gain or command. Recorded predictions that could be tried but are not among the verdict's remedies follow.
    """
    run, verdict = CommandBuilder.of(inputs.record, job), inputs.record.verdict
    found = sorted(recommend(run, inputs, verdict), key=lambda cure: -(cure.gain or 0.0)) if verdict else []
    on_record = {each.prediction.scenario.flag_text: each for each in outcomes(job) if each.prediction.gain is not None}
    following = next_command(run, inputs, verdict) if verdict and verdict.next else ""
    if not on_record and all(cure.command == following and not cure.reason for cure in found):
        return
    tried = any(each.measured for each in on_record.values())
    yield from styled([f"what may help, predicted ({CONFIDENCE:.0%}){' and measured (95%)' if tried else ''}"], LABEL)
    for cure in found:
        outcome = on_record.pop(cure.scenario.flag_text, None) if cure.scenario else None
        foretold = (
            _outcome_text(outcome) if outcome else _prediction_text(predict_gain(inputs, run, cure.scenario)) if cure.scenario else ""
        )
        why = cure.reason if verbose or not (foretold and cure.command) else ""
        is_next = bool(cure.command) and cure.command == following
        yield from _remedy_line(cure.name, [foretold, why, NEXT_COMMAND_NOTE if is_next else ""], page)
        yield from styled(wrap_command("    ", cure.command, page) if cure.command and not is_next else [])
    for name, outcome in on_record.items():
        if not is_runnable(outcome.prediction.scenario):
            continue
        yield from _remedy_line(name, [_outcome_text(outcome)], page)


def _remedy_line(name: str, parts: Sequence[str], page: Page) -> list[Text]:
    return styled(wrap_text("  ", f"{name}: {'; '.join(filter(None, parts))}", page), LABEL, 2 + len(name))


def recommendation_lines(job: Job, page: Page) -> Iterator[Text]:
    """The command to use from now on, and its gain.

    Empty without predictions, or while none that can be tried has been tried.
    """
    found, real = outcomes(job), baseline_of(job)
    if not found or real is None:
        return
    winner = best_outcome(found)
    if winner is None or winner.measured is None:
        tried = any(each.failure or (each.measured and each.measured.has_interval) for each in found)
        if tried or not any(each.prediction.gain is not None and is_runnable(each.prediction.scenario) for each in found):
            why = "nothing that was tried is measurably faster" if tried else "no gain is predicted of anything that can be tried here"
            yield from styled(wrap_text("use    ", f"the setting as it is: {why}", page), LABEL, 3)
        return
    yield from styled(wrap_command("use    ", command_with(job, winner.prediction.scenario), page), GOOD)
    yield from styled(wrap_text("worth  ", _savings_text(winner.measured, job, real), page), LABEL, 5)


def _prediction_text(prediction: Prediction) -> str:
    if prediction.gain is None or prediction.low is None or prediction.high is None:
        return f"needs a measurement: {prediction.missing_measurement}"
    return f"predicted {gain_text(prediction.gain, prediction.low, prediction.high)}"


def _outcome_text(outcome: PredictionOutcome) -> str:
    """The predicted gain, the measured one, and the error of the prediction."""
    foretold, ratio = _prediction_text(outcome.prediction), outcome.measured
    short = f", in rounds that are {pluralize(outcome.missing_batches, 'batch', 'es')} short" if outcome.missing_batches else ""
    if outcome.failure:
        return f"{foretold}; failed: {outcome.failure}"
    if ratio is None:
        return f"{foretold}; {'not tried' if is_runnable(outcome.prediction.scenario) else 'cannot be tried here'}"
    if not ratio.has_interval:
        return f"{foretold}; measured {format_rounded(ratio.center, 2)}x, too few rounds to tell"
    if outcome.is_wide:
        return f"{foretold}; measured {format_rounded(ratio.low, 2)}x to {format_rounded(ratio.high, 2)}x, too wide to compare{short}"
    held = f"{'inside' if outcome.is_inside else 'outside'}, {_prediction_error_text((outcome.prediction.gain or 1.0) / ratio.center - 1)}"
    came = "" if outcome.is_gain else ", a loss" if outcome.is_significant else ", no gain measured"
    return f"{foretold}; measured {gain_text(ratio.center, ratio.low, ratio.high)}, {held}{came}{short}"


def _prediction_error_text(error: float) -> str:
    """``9% too high``."""
    share = f"{100 * abs(error):.0f}%"
    return "0% off" if share == "0%" else f"{share} too {'high' if error > 0 else 'low'}"


def _savings_text(gain: PairedRatio, job: Job, baseline: Record) -> str:
    """Images/s gained and hours saved per day, with the interval of the gain."""
    again = next(record for record in job.records if record.label == BASELINE_REPEAT)
    now = sum(timed.images for timed in again.rounds) / sum(timed.wall_s for timed in again.rounds)
    hours = 24 * baseline.world_size
    device = "GPU-hours" if device_noun(baseline.environment) == "GPU" else "hours of a rank"
    more = Interval(*((times - 1) * now for times in (gain.center, gain.low, gain.high)))
    saved = Interval(*((1 - 1 / times) * hours for times in (gain.center, gain.low, gain.high)))
    return (
        f"{_format_rough(more)} {throughput_unit(baseline)} more; {_format_rough(saved)} of {hours:,} {device} "
        "a day are saved for the same work"
    )


def _format_rough(estimate: Interval) -> str:
    return format_with_interval(estimate.center, estimate.low, estimate.high, width_digits=1)
