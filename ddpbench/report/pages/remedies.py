"""The remedies of a diagnosis with their predicted and measured gains; then what to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.prediction import PREDICTION_CONFIDENCE
from ddpbench.record.record import Record
from ddpbench.record.remedy import Advice, Remedy, ScreenedRemedy
from ddpbench.record.verdict import ChangeDataLoader, RunCommand
from ddpbench.report.format import MISSING
from ddpbench.report.grid import Grid, GridColumn
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, styled, wrap_command, wrap_text
from ddpbench.report.messages.remedies import (
    ADVICE,
    measured_gain_text,
    pixels_text,
    predicted_gain_text,
    remedy_details,
    remedy_name,
    remedy_reason,
    remedy_room,
    worth_text,
)
from ddpbench.report.messages.sample_comparison import NOT_COMPARED, comparison_text
from ddpbench.report.messages.screening import computing_gain_text
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.pages.script_diff import diff_lines

INDENT = "  "

MAX_ROWS = 3
"""Remedies in the table, unless the page is verbose."""

MAX_NAME = 32
"""Longest name that shares its line with the gains."""

PREDICTED, MEASURED = f"predicted ({PREDICTION_CONFIDENCE:.0%})", "measured (95%)"
"""Headings of the gains, with their confidence."""


def remedy_lines(record: Record, diagnosis: Diagnosis, page: Page, *, has_next: bool = True) -> Iterator[Text]:
    """The remedies with their predicted and measured gains.

    Empty if they add nothing to the next command of the verdict, which the page shows ``has_next``. A verbose page shows all of them, with
    the reason and the command of each; any page says where memory had no room for more workers.
    """
    verdict = record.verdict
    next_command = verdict.next.command if has_next and verdict and isinstance(verdict.next, RunCommand) else ""
    remedies, recorded = tried_or_predicted(diagnosis), {each.scenario for each in diagnosis.predictions}
    is_new = any(each.can_be_tried and each.scenario in recorded for each in remedies)
    if not is_new and all(each.command == next_command and not remedy_reason(each, record) for each in remedies):
        return
    shown = remedies if page.verbose else remedies[:MAX_ROWS]
    names = [remedy_name(remedy, record) for remedy in shown]
    name_width = len(INDENT) + max(len("remedies"), *(len(name) for name in names if len(name) <= MAX_NAME), 0)
    width = max(len(PREDICTED), *(len(predicted_gain_text(remedy)) for remedy in shown))
    yield from styled([f"{'remedies':{name_width}}  {PREDICTED:{width}}  {MEASURED}"], LABEL)
    for remedy, text in zip(shown, names, strict=True):
        name, predicted, measured = f"{INDENT}{text}", predicted_gain_text(remedy), measured_gain_text(remedy)
        reason = remedy_reason(remedy, record, diagnosis)
        if not (predicted or measured):
            yield from styled(wrap_text(INDENT, f"{text}{f': {reason}' if reason else ''}", page), LABEL, len(name))
        else:
            lines = wrap_text(f"{'' if len(name) > name_width else name:{name_width}}  {predicted or MISSING:{width}}  ", measured, page)
            above = wrap_text(INDENT, text, page) if len(name) > name_width else []
            yield from styled([*above, *lines], LABEL, len(name))
            shown_details = [reason, remedy_details(remedy)] if page.verbose else [remedy_room(remedy, record, diagnosis)]
            if details := "; ".join(filter(None, shown_details)):
                yield from styled(wrap_text("    ", details, page))
        if page.verbose and remedy.command and remedy.command != next_command:
            yield from styled(wrap_command("    ", remedy.command, page))


def tried_or_predicted(diagnosis: Diagnosis) -> list[Remedy]:
    """The remedies that were not screened."""
    return [each for each in diagnosis.remedies or () if not isinstance(each, ScreenedRemedy)]


def remedy_grid(remedies: Sequence[Remedy], record: Record) -> Grid:
    """All remedies with their predicted and measured gains."""
    names = GridColumn("remedy", [remedy_name(remedy, record) for remedy in remedies])
    predicted = GridColumn(PREDICTED, [predicted_gain_text(remedy) or MISSING for remedy in remedies])
    measured = GridColumn(MEASURED, [measured_gain_text(remedy) or MISSING for remedy in remedies])
    return Grid("remedies", [names], [predicted, measured])


def samples_text(record: Record, diagnosis: Diagnosis | None = None) -> str:
    """What is known of the samples that workers of a script read; empty if nothing was compared, and no other workers are suggested."""
    if record.script is None:
        return ""
    if record.script.sample_comparison:
        return comparison_text(record.script.sample_comparison)
    advice = diagnosis.advice if diagnosis else None
    change = advice.change if advice and advice.change else record.verdict.next if record.verdict else None
    return NOT_COMPARED if isinstance(change, ChangeDataLoader) and change.num_workers else ""


def comparison_lines(record: Record, diagnosis: Diagnosis | None, page: Page) -> Iterator[Text]:
    """What is known of the samples that workers read, if anything."""
    if text := samples_text(record, diagnosis):
        yield from styled(wrap_text("samples  ", text, page), LABEL, len("samples"))


def advice_text(advice: Advice) -> str:
    """What to use from now on: a change, or the current settings, with the reason."""
    if advice.code == "screened" and advice.computing:
        return next_step_text(advice.computing)
    return next_step_text(advice.change) if advice.change else ADVICE[advice.code]


def caution_text(diagnosis: Diagnosis) -> str:
    """What the advised change does besides making the training faster; empty for most."""
    change, pixels = diagnosis.advice.change if diagnosis.advice else None, diagnosis.pixel_difference
    return pixels_text(pixels.mean, pixels.max) if isinstance(change, ChangeDataLoader) and change.decode_on_gpu and pixels else ""


def advice_lines(record: Record, diagnosis: Diagnosis | None, page: Page) -> Iterator[Text]:
    """What to use from now on, its gain, and the diff that does it; empty if that is open."""
    advice = diagnosis.advice if diagnosis else None
    if diagnosis is None or advice is None:
        return
    if advice.change:
        yield from styled(wrap_command("  use   ", advice_text(advice), page), GOOD)
        if caution := caution_text(diagnosis):
            yield from styled(wrap_text("  note  ", caution, page), CAUTION, len("  note"))
    else:
        yield from styled(wrap_text("  use   ", advice_text(advice), page), LABEL, len("  use"))
    if advice.worth:
        yield from styled(wrap_text("  worth ", worth_text(advice.worth, record), page), LABEL, len("  worth"))
    if advice.computing and (gain := computing_gain_text(advice)):
        if advice.code != "screened":
            yield from styled(wrap_text("  then  ", next_step_text(advice.computing), page), LABEL, len("  then"))
        yield from styled(wrap_text("  gains ", gain, page), LABEL, len("  gains"))
    yield from diff_lines(diagnosis.diff, page)
