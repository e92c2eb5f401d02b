"""Remedies with predicted and measured gains and their commands; then the one to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.training import next_remedy, recommend
from ddpbench.analysis.whatif.gain import CONFIDENCE
from ddpbench.analysis.whatif.outcome import best_outcome, command_with, is_runnable, outcomes
from ddpbench.analysis.whatif.query import predict_gain
from ddpbench.record.record import Job
from ddpbench.record.roles import BASELINE_REPEAT
from ddpbench.report.layout import GOOD, LABEL, Page, styled, wrap_command, wrap_text
from ddpbench.report.messages.remedies import (
    NO_GAIN_PREDICTED,
    NOTHING_FASTER,
    outcome_text,
    prediction_text,
    remedy_name,
    remedy_reason,
    savings_text,
)
from ddpbench.report.pages.header import throughput_unit

NEXT_COMMAND_NOTE = "the command behind 'next'"


def remedy_lines(inputs: AnalysisInput, job: Job, page: Page, verbose: bool = False) -> Iterator[Text]:
    """Predicted gain, measured result and command of each remedy, largest gain first.

    Empty if the next command of the verdict says it all. ``verbose`` adds what each is good for, which is always printed if there is no
    gain or command. Recorded predictions that could be tried but are not among the verdict's remedies follow.
    """
    record, run, verdict = inputs.record, CommandBuilder.of(inputs.record, job), inputs.record.verdict
    found = sorted(recommend(run, inputs, verdict), key=lambda cure: -(cure.gain or 0.0)) if verdict else []
    on_record = {each.prediction.scenario.flag_text: each for each in outcomes(job) if each.prediction.gain is not None}
    following = next_remedy(run, inputs, verdict) if verdict and verdict.next else None
    following_command = following.command if following else ""
    if not on_record and all(cure.command == following_command and not remedy_reason(cure, record) for cure in found):
        return
    tried = any(each.measured for each in on_record.values())
    yield from styled([f"what may help, predicted ({CONFIDENCE:.0%}){' and measured (95%)' if tried else ''}"], LABEL)
    for cure in found:
        outcome = on_record.pop(cure.scenario.flag_text, None) if cure.scenario else None
        foretold = outcome_text(outcome) if outcome else prediction_text(predict_gain(inputs, run, cure.scenario)) if cure.scenario else ""
        why = remedy_reason(cure, record) if verbose or not (foretold and cure.command) else ""
        is_next = bool(cure.command) and cure.command == following_command
        yield from _remedy_line(remedy_name(cure, record), [foretold, why, NEXT_COMMAND_NOTE if is_next else ""], page)
        yield from styled(wrap_command("    ", cure.command, page) if cure.command and not is_next else [])
    for name, outcome in on_record.items():
        if not is_runnable(outcome.prediction.scenario):
            continue
        yield from _remedy_line(name, [outcome_text(outcome)], page)


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
        tried = any(each.failed or (each.measured and each.measured.has_interval) for each in found)
        if tried or not any(each.prediction.gain is not None and is_runnable(each.prediction.scenario) for each in found):
            why = NOTHING_FASTER if tried else NO_GAIN_PREDICTED
            yield from styled(wrap_text("use    ", f"the setting as it is: {why}", page), LABEL, 3)
        return
    worth = savings_text(winner.measured, _samples_per_s(job), real, throughput_unit(real))
    yield from styled(wrap_command("use    ", command_with(job, winner.prediction.scenario), page), GOOD)
    yield from styled(wrap_text("worth  ", worth, page), LABEL, 5)


def _samples_per_s(job: Job) -> float:
    """Throughput of the baseline in turns with the trials."""
    again = next(record for record in job.records if record.role == BASELINE_REPEAT)
    return sum(timed.samples for timed in again.rounds) / sum(timed.wall_s for timed in again.rounds)
