"""The ``whatif`` command, which predicts other settings from the record of a diagnosis."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from ddpbench.cli.options import add_flags, flag_options, help_flag, parse_given
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import find_loader
from ddpbench.record.prediction import Scenario
from ddpbench.record.registry import find_precision
from ddpbench.record.request import OUTPUT

JSON_FLAG = click.RichOption(["as_json", "--json"], is_flag=True, panel=OUTPUT, help="print the prediction as one JSON object")


@add_flags([*flag_options(Scenario), JSON_FLAG])
@click.command(options_metavar="[FLAGS]")
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RECORD [MORE]...")
@help_flag
def whatif(records: Sequence[Path], as_json: bool, **given: Any) -> int:
    """Predict the throughput with other settings from a diagnosis.

    Examples:
        ddpbench whatif results/runs/RECORD.json --workers 16
        ddpbench whatif results/runs --loader dali-gpu --cores-per-gpu 8

    RECORD is the record of a diagnosis, or a folder whose latest record is one. Nothing is run: the training is
    simulated from the measured times. The prediction has an interval, and its assumptions are listed.

    Missing measurements are not guessed. MORE records of the same training on the same devices can supply them: steps with
    another precision or batch size ('--loader synthetic'), or a diagnosis of another loader.
    """
    scenario = _parse_scenario(given)
    from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
    from ddpbench.analysis.whatif.query import answer_whatif
    from ddpbench.bench.journal import load_job
    from ddpbench.cli.files import resolve_record
    from ddpbench.report.console import finish_output, make_console
    from ddpbench.report.export import without_missing_json
    from ddpbench.report.messages.predictions import missing_measurement_text
    from ddpbench.report.messages.whatif import measurement_hint
    from ddpbench.report.pages.whatif import render_whatif

    job, *others = map(load_job, map(resolve_record, records))
    console = make_console(sys.stdout)
    try:
        answer = answer_whatif(job, scenario, others)
    except MissingMeasurementError as error:
        missing = missing_measurement_text(error.missing)
        raise UsageError(f"missing measurement: {missing}", measurement_hint(error.command)) from error
    if as_json:
        console.out(without_missing_json(answer.prediction))
    else:
        render_whatif(job, answer, console)
    return finish_output(console)


def _parse_scenario(given: dict[str, Any]) -> Scenario:
    """The Scenario of the flags. Raises UsageError if it is empty, or has an unknown name or a value out of range."""
    scenario = Scenario(**parse_given(Scenario, given))
    if scenario == Scenario():
        raise UsageError("no setting is changed", "change one, as in 'ddpbench whatif RECORD --workers 16'")
    if scenario.loader is not None:
        find_loader(scenario.loader)
    if scenario.precision is not None:
        scenario = msgspec.structs.replace(scenario, precision=find_precision(scenario.precision).name)
    return scenario
