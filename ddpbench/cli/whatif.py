"""The ``whatif`` command, which predicts other settings from the record of a diagnosis."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from ddpbench.cli.options import add_flags, flag_options, help_flag, parse_given
from ddpbench.data import registry as loaders
from ddpbench.record.errors import UsageError
from ddpbench.record.prediction import Scenario
from ddpbench.record.registry import find_precision


@add_flags(flag_options(Scenario))
@click.command(options_metavar="[FLAGS]")
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RECORD [MORE]...")
@help_flag
def whatif(records: Sequence[Path], **given: Any) -> int:
    """Predict the training of a diagnosis with other settings.

    RECORD is what 'ddpbench diagnose' wrote, or a folder with it as the latest, and nothing is run: the training is simulated from the
    times that were measured.
    The answer comes with its interval, and with what it takes for granted.

    What was not measured is not guessed. MORE records of the same training on the same devices lend what is missing: steps of
    another precision or batch ('--loader synthetic'), or another loader's diagnosis.
    """
    change = _parse_scenario(given)
    from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
    from ddpbench.analysis.whatif.query import answer_whatif
    from ddpbench.bench.journal import load_job
    from ddpbench.cli.files import resolve_record
    from ddpbench.report.console import finish_output, make_console
    from ddpbench.report.messages.whatif import measurement_hint, missing_measurement_text
    from ddpbench.report.pages.whatif import render_whatif

    job, *others = map(load_job, map(resolve_record, records))
    console = make_console(sys.stdout)
    try:
        answer = answer_whatif(job, change, others)
    except MissingMeasurementError as error:
        missing = missing_measurement_text(error.missing)
        raise UsageError(f"this needs a measurement: {missing}", measurement_hint(error.command)) from error
    render_whatif(job, answer, console)
    return finish_output(console)


def _parse_scenario(given: dict[str, Any]) -> Scenario:
    """The Scenario of the flags. Raises UsageError if it is empty, or has an unknown name or a value out of range."""
    change = Scenario(**parse_given(Scenario, given))
    if change == Scenario():
        raise UsageError("nothing is asked: no setting is changed", "such as 'ddpbench whatif RECORD --workers 16'")
    if change.loader is not None:
        loaders.find_loader(change.loader)
    if change.precision is not None:
        change = msgspec.structs.replace(change, precision=find_precision(change.precision).name)
    return change
