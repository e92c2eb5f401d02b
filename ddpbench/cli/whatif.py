"""The command that answers from a record what nobody has run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from ddpbench.cli.flags import takes
from ddpbench.cli.help_flags import helped
from ddpbench.cli.options import options, values_given
from ddpbench.data import registry as loaders
from ddpbench.record.errors import UsageError
from ddpbench.record.prediction import Change
from ddpbench.record.registry import precision


@takes(options(Change))
@click.command(options_metavar="[FLAGS]")
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RECORD [MORE]...")
@helped
def whatif(records: Sequence[Path], **given: Any) -> int:
    """Predict the training of a diagnosis with other settings.

    RECORD is what 'ddpbench diagnose' wrote, or a folder with it as the latest, and nothing is run: the training is simulated from the
    times that were measured.
    The answer comes with its interval, and with what it takes for granted.

    What was not measured is not guessed. MORE records of the same training on the same devices lend what is missing: steps of
    another precision or batch ('--loader synthetic'), or another loader's diagnosis.
    """
    change = _change(given)
    from ddpbench.analysis.whatif.query import ask
    from ddpbench.bench.kept import read
    from ddpbench.cli.files import one_below
    from ddpbench.report.console import make_console, printed
    from ddpbench.report.pages.whatif import render_answer

    job, *others = map(read, map(one_below, records))
    console = make_console(sys.stdout)
    render_answer(job, ask(job, change, others), console)
    return printed(console)


def _change(given: dict[str, Any]) -> Change:
    """What the words ask for; raises UsageError where that is nothing, an unknown name, or out of range."""
    change = Change(**values_given(Change, given))
    if change == Change():
        raise UsageError("nothing is asked: no setting is changed", "such as 'ddpbench whatif RECORD --workers 16'")
    if change.loader is not None:
        loaders.find(change.loader)
    if change.precision is not None:
        change = msgspec.structs.replace(change, precision=precision(change.precision).name)
    return change
