"""The full run under the setting that won, after the diagnosis that found it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import msgspec

from ddpbench.analysis.pipeline.experiments import diagnosed
from ddpbench.analysis.whatif.outcome import best, command_for, fields_of, outcomes
from ddpbench.experiments.launches import start_one
from ddpbench.machine.say import OUTCOME_VARIABLE, print_note
from ddpbench.record.errors import UsageError
from ddpbench.record.prediction import Change
from ddpbench.record.record import load
from ddpbench.record.request import Request


def refuse_ranks_of_others(request: Request) -> None:
    """Raises UsageError where nobody of ours starts the ranks: those of a launcher end with what they were started for."""
    if not request.output.gpus and OUTCOME_VARIABLE not in os.environ:
        raise UsageError("--apply starts a second run, and here the ranks are the launcher's", "--gpus N, and no torchrun")


def run_the_winner(request: Request, record: str) -> int:
    """Runs what gained most in the diagnosis that left ``record``; the setting as it is, where nothing did.

    The ``--json`` of the request is the diagnosis' own: where that has stdout, the report of this run goes to stderr.
    """
    job = load(Path(record))
    real, won = diagnosed(job), best(outcomes(job))
    assert real is not None, "a diagnosis that ended well"
    change = won.prediction.change if won else Change()
    arm = msgspec.structs.replace(request.arms[0], **{"loader": real.config.loader, "time_limit": None, **fields_of(change)})
    output = msgspec.structs.replace(request.output, json=None)
    print_note(f"the full run: {change.words or 'the setting as it is, since nothing that was tried is measurably faster'}")
    full = msgspec.structs.replace(request, arms=[arm], output=output, command=shlex.split(command_for(job, change)))
    return start_one(full, sys.stderr if request.output.json == "-" else None).exit_code
